"""Write labelled prompts for `recombine probe-model`: every pair of an animal and a place, in eight sentences each.

    python examples/prompts.py prompts.jsonl
    recombine probe-model FOLDER --prompts prompts.jsonl

The labels of a prompt are its animal and its place. The probe holds out a quarter of the pairs, so that decoders are scored
on compositions that they have not seen, of labels that they have.
"""

import json
import sys

ANIMALS = ("cat", "dog", "horse", "mouse", "bird", "fish")
PLACES = ("garden", "kitchen", "forest", "city", "boat", "school")
SENTENCES = (
    "The {animal} slept in the {place}.",
    "We saw a {animal} near the {place} yesterday.",
    "In the {place} lived an old {animal}.",
    "Nobody expected the {animal} to leave the {place}.",
    "A {place} is no home for a {animal}.",
    "My {animal} likes the {place} best in winter.",
    "They painted the {place} and the {animal} watched.",
    "Why did the {animal} run towards the {place}?",
)


def main() -> None:
    with open(sys.argv[1], "w") as file:
        for animal in ANIMALS:
            for place in PLACES:
                for sentence in SENTENCES:
                    row = {"text": sentence.format(animal=animal, place=place), "labels": [animal, place]}
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
