"""Small programs that run as they are, without a key; each is a test too."""
