"""An answer read as a Struct: `python -m examples.structured_output`.

The first answer does not fit; it goes back to the model with the reason.
"""

import msgspec

from trioagent import Agent
from trioagent.testing import ScriptedModel


class City(msgspec.Struct):
    name: str
    people: int


def main() -> None:
    model = ScriptedModel(
        ['{"name": "Porto", "people": "many"}', '{"name": "Porto", "people": 231800}']
    )
    city = Agent(model, output=City).run_sync("Tell me about Porto").unwrap()
    print(f"{city.name} has {city.people} people, after {len(model.requests)} requests")


if __name__ == "__main__":
    main()
