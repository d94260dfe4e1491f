"""Texts to try lexfed on, where none of one's own are at hand: `notes.csv`, 2,844 short texts of
five clinics with labels, and `new.csv`, 20 texts without.

They are film reviews in truth: the package carries them, so nothing is downloaded.
"""

import csv

import lexfed

CLINICS = ("North clinic", "South clinic", "East clinic", "West clinic", "Harbour clinic")
reviews = lexfed.load_corpus("rotten_tomatoes")
labels = [("bad", "good")[label] for label in reviews.labels]
texts = list(zip(reviews, labels, strict=True))
half = len(texts) // 2  # the good ones come first; here they alternate with the bad
texts = [one for pair in zip(texts[:half], texts[half:], strict=True) for one in pair]

with open("notes.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(("note", "label", "clinic"))
    for number, (text, label) in enumerate(texts[::3]):
        table.writerow((text, label, CLINICS[number % len(CLINICS)]))

with open("new.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(("note",))
    table.writerows((text,) for text, _ in texts[1:60:3])

print("wrote notes.csv and new.csv")
