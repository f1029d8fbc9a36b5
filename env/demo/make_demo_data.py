#!/usr/bin/env python3
"""Write alpaca_demo.json, the quick start's dataset: a few hundred rows of our own, the same bytes at every run.

Most answers are computed; the facts in the tables below are general knowledge. Apache-2.0 like the rest.

    make_demo_data.py [FILE]
"""

import json
import random
import sys
from collections import Counter
from pathlib import Path

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Germany": "Berlin",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Hungary": "Budapest", "Japan": "Tokyo",
    "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi", "Canada": "Ottawa",
    "Peru": "Lima", "Argentina": "Buenos Aires", "Chile": "Santiago", "Cuba": "Havana", "Australia": "Canberra",
}  # fmt: skip

ELEMENTS = {
    "hydrogen": ("H", 1), "helium": ("He", 2), "carbon": ("C", 6), "nitrogen": ("N", 7), "oxygen": ("O", 8),
    "sodium": ("Na", 11), "aluminium": ("Al", 13), "silicon": ("Si", 14), "chlorine": ("Cl", 17),
    "calcium": ("Ca", 20), "iron": ("Fe", 26), "copper": ("Cu", 29), "silver": ("Ag", 47), "gold": ("Au", 79),
    "lead": ("Pb", 82),
}  # fmt: skip

SCIENCE = [
    ("What is photosynthesis?",
     "Photosynthesis is the process by which plants, algae and some bacteria use the energy of light to make sugar "
     "from carbon dioxide and water. Plants release oxygen as they do it."),
    ("Why does the Moon show phases?",
     "The Sun always lights one half of the Moon. As the Moon moves around the Earth, we see a different part of that "
     "lit half, from none at new moon to all of it at full moon."),
    ("Why do we have seasons on Earth?",
     "The Earth's axis is tilted by about 23.4 degrees. During the year each hemisphere leans towards the Sun and then "
     "away from it, which changes the height of the Sun and the length of the days."),
    ("What does DNA do?",
     "DNA stores hereditary information. The order of its four bases encodes how a cell builds its proteins and RNA, "
     "and it is copied each time a cell divides."),
    ("What is the difference between mass and weight?",
     "Mass is the amount of matter in a body and is measured in kilograms. Weight is the force with which gravity pulls "
     "on that mass, and it is measured in newtons. On the Moon your mass is the same, but your weight is smaller."),
    ("What is an atom made of?",
     "An atom has a small nucleus of protons and neutrons, which holds nearly all of its mass. Electrons surround the "
     "nucleus. A neutral atom has as many electrons as protons."),
    ("Why does ice float on water?",
     "Water expands when it freezes, so ice is less dense than liquid water and floats on it."),
    ("How does a vaccine work?",
     "A vaccine shows the immune system a harmless part or form of a germ. The body learns to recognise it and can "
     "respond faster when it meets the real germ."),
    ("What causes thunder?",
     "A lightning stroke heats the air around it within a fraction of a second. The air expands so fast that it sends "
     "out a shock wave, which we hear as thunder."),
    ("Why is thunder heard after the lightning is seen?",
     "Light reaches us almost at once, while sound travels about 340 metres per second in air. A delay of three seconds "
     "means that the lightning was about one kilometre away."),
    ("What is the water cycle?",
     "Water evaporates from seas, lakes and land, condenses into clouds, and falls as rain or snow. Rivers and ground "
     "water carry it back to the sea."),
    ("What is inertia?",
     "Inertia is the tendency of a body to keep its state of motion. Without a net force, a body at rest stays at rest "
     "and a moving body goes on in a straight line at constant speed."),
    ("What is the function of red blood cells?",
     "Red blood cells carry oxygen from the lungs to the tissues. They contain haemoglobin, a protein with iron that "
     "binds the oxygen."),
    ("What is a prime number?",
     "A prime number is a whole number greater than 1 that can be divided without remainder only by 1 and by itself. "
     "The first ones are 2, 3, 5, 7 and 11."),
    ("State the Pythagorean theorem.",
     "In a right triangle, the square of the hypotenuse equals the sum of the squares of the other two sides: "
     "a^2 + b^2 = c^2."),
    ("Explain what a leap year is.",
     "A leap year has 366 days, with an extra day on 29 February. Years divisible by 4 are leap years, except those "
     "divisible by 100 and not by 400."),
    ("What is the greenhouse effect?",
     "Gases such as water vapour and carbon dioxide let sunlight through but absorb part of the heat that the ground "
     "radiates. This keeps the surface warmer than it would be without them."),
    ("Name the three most common states of matter.", "Solid, liquid and gas."),
    ("Name the planets of the solar system in order from the Sun.",
     "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune."),
    ("What is the chemical formula of water, and what does it mean?",
     "The formula is H2O: each molecule has two hydrogen atoms and one oxygen atom."),
]  # fmt: skip

# present, third person, past, participle
VERBS = [
    ("walk", "walks", "walked", "walking"), ("write", "writes", "wrote", "writing"),
    ("sing", "sings", "sang", "singing"), ("run", "runs", "ran", "running"),
    ("teach", "teaches", "taught", "teaching"), ("carry", "carries", "carried", "carrying"),
    ("swim", "swims", "swam", "swimming"), ("dance", "dances", "danced", "dancing"),
    ("think", "thinks", "thought", "thinking"), ("drive", "drives", "drove", "driving"),
    ("speak", "speaks", "spoke", "speaking"), ("bake", "bakes", "baked", "baking"),
]  # fmt: skip

PLURALS = {
    "child": "children", "mouse": "mice", "foot": "feet", "tooth": "teeth", "leaf": "leaves", "city": "cities",
    "box": "boxes", "hero": "heroes", "sheep": "sheep", "knife": "knives", "bus": "buses", "day": "days",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "early": "late", "heavy": "light", "empty": "full", "ancient": "modern", "shallow": "deep",
    "narrow": "wide", "cheap": "expensive", "noisy": "quiet", "weak": "strong", "rough": "smooth", "wet": "dry",
}  # fmt: skip

FEELINGS = [
    ("The concert was wonderful and I would go again tomorrow.", "positive"),
    ("The soup was cold and nobody apologised.", "negative"),
    ("What a friendly and helpful staff!", "positive"),
    ("The zip broke on the second day.", "negative"),
    ("I could not put this book down.", "positive"),
    ("We waited two hours and then the tour was cancelled.", "negative"),
    ("The new bridge saves me half an hour every day, and I love it.", "positive"),
    ("The film was far too long and the plot made no sense.", "negative"),
    ("My old bicycle runs like new since they repaired it.", "positive"),
    ("The room smelled of smoke and the window would not open.", "negative"),
]

SUMMARIES = [
    ("The village had no doctor for three years. Last spring a young physician opened a practice in the old school. "
     "Now people no longer have to travel forty kilometres for a simple check-up.",
     "After three years without a doctor, the village has a practice again and saves its people long trips."),
    ("Maria planted tomatoes in April. A late frost killed half of them, but the others gave so much fruit that she "
     "shared it with her neighbours.",
     "Despite a late frost, Maria's tomatoes gave enough fruit to share."),
    ("Our library has changed its opening hours. From Monday to Friday it opens at nine and closes at seven. On "
     "Saturdays it closes at one, and on Sundays it stays closed.",
     "The library is open from nine to seven on weekdays and until one on Saturdays, and is closed on Sundays."),
    ("The first version of the program read the whole file before it did anything. With large files it ran out of "
     "memory. The new version reads line by line and works with files of any size.",
     "Reading line by line instead of all at once lets the program handle files of any size."),
    ("The ferry was late because of fog. When it arrived, the last train had already gone. The captain let the "
     "passengers sleep on board.",
     "Fog delayed the ferry past the last train, so its passengers slept on board."),
    ("Tom wanted to learn the violin. He practised ten minutes every morning before school. After a year he played in "
     "the school orchestra.",
     "By practising ten minutes a day, Tom made it into the school orchestra within a year."),
    ("A supercomputer is made of many ordinary computers joined by a fast network. A program has to divide its work "
     "among them. The more they must talk to each other, the more the network matters.",
     "A supercomputer joins many computers, and programs that communicate much depend on its network."),
    ("The museum counted its visitors for a month. Most came on rainy weekends. On sunny days the garden café had more "
     "guests than the exhibition.",
     "The museum is fullest on rainy weekends, while sunny days fill its café."),
    ("Bees visit flowers for nectar. Pollen sticks to their bodies and is carried to the next flower. Many crops would "
     "give far less fruit without them.",
     "By carrying pollen between flowers, bees help many crops to bear fruit."),
    ("The company sent its invoices by post until last year. Now it sends them by e-mail. Customers pay four days "
     "sooner on average.",
     "Since the company sends invoices by e-mail, customers pay four days sooner."),
]  # fmt: skip

CODE = [
    ("Write a Python function that returns the largest number in a list.",
     "def largest(numbers):\n    result = numbers[0]\n    for number in numbers[1:]:\n        if number > result:\n"
     "            result = number\n    return result"),
    ("Write a Python function that counts the vowels in a string.",
     "def count_vowels(text):\n    return sum(1 for letter in text.lower() if letter in \"aeiou\")"),
    ("Write a Python function that checks whether a word is a palindrome.",
     "def is_palindrome(word):\n    return word == word[::-1]"),
    ("Write a Python function that returns the factorial of n.",
     "def factorial(n):\n    result = 1\n    for factor in range(2, n + 1):\n        result *= factor\n    return result"),
    ("Write a Python function that returns the first n Fibonacci numbers, starting with 0 and 1.",
     "def fibonacci(n):\n    numbers = [0, 1]\n    while len(numbers) < n:\n        numbers.append(numbers[-1] + numbers[-2])"
     "\n    return numbers[:n]"),
    ("Write a Python function that tells whether a year is a leap year.",
     "def is_leap_year(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
    ("Write a Python function that removes duplicates from a list and keeps the order.",
     "def unique(items):\n    return list(dict.fromkeys(items))"),
    ("Write a Python function that computes the mean of a list of numbers.",
     "def mean(numbers):\n    return sum(numbers) / len(numbers)"),
    ("Write a Python function that counts how often each word occurs in a text.",
     "from collections import Counter\n\n\ndef word_counts(text):\n    return Counter(text.lower().split())"),
    ("Write a Python function that converts degrees Celsius to degrees Fahrenheit.",
     "def to_fahrenheit(celsius):\n    return celsius * 9 / 5 + 32"),
    ("Write a C++ function that returns the sum of a vector of doubles.",
     "#include <numeric>\n#include <vector>\n\ndouble sum(const std::vector<double>& values) {\n"
     "  return std::accumulate(values.begin(), values.end(), 0.0);\n}"),
    ("Write a shell command that counts the lines of all .txt files in the current folder.",
     "cat -- *.txt | wc -l"),
    ("Write an SQL query that lists the names of all customers from Oslo in alphabetical order.",
     "SELECT name FROM customers WHERE city = 'Oslo' ORDER BY name;"),
    ("Write a regular expression that matches a date such as 2024-05-17.", "\\d{4}-\\d{2}-\\d{2}"),
]  # fmt: skip

WORDS = (
    "river mountain window garden bridge candle pencil orange silver forest basket market kitchen harbour lantern "
    "meadow castle thunder village blanket compass feather journey kettle ladder mirror needle paper"
).split()

NAMES = ["Anna", "Ben", "Clara", "David", "Eva", "Felix", "Greta", "Hugo"]

PLACES = ["in the garden", "with her brother", "in the park", "near the river"]
TIMES = ["every morning", "after school", "on Sundays", "in the evening"]


def row(instruction, output, text=""):
    return {"instruction": instruction, "input": text, "output": output}


def number_text(value):
    """Without a trailing .0, at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def arithmetic(rng):
    for _ in range(14):
        a, b = rng.randint(12, 480), rng.randint(12, 480)
        yield row(f"What is {a} + {b}?", f"{a} + {b} = {a + b}")
    for _ in range(10):
        a, b = sorted((rng.randint(12, 900), rng.randint(12, 900)), reverse=True)
        yield row("Subtract the second number from the first.", f"{a} - {b} = {a - b}", f"{a}, {b}")
    for _ in range(12):
        a, b = rng.randint(3, 25), rng.randint(3, 25)
        yield row(f"Calculate the product of {a} and {b}.", f"{a} times {b} is {a * b}.")
    for _ in range(8):
        divisor, quotient, rest = rng.randint(3, 12), rng.randint(3, 40), rng.randint(0, 2)
        yield row("Divide the first number by the second and give the remainder.",
                  f"The quotient is {quotient} and the remainder is {rest}.",
                  f"{divisor * quotient + rest}, {divisor}")  # fmt: skip


def word_problems(rng):
    for _ in range(10):
        name, each, price = rng.choice(NAMES), rng.randint(3, 12), rng.randint(2, 9)
        yield row(f"{name} buys {each} notebooks at {price} euros each. How much does {name} pay?",
                  f"{each} notebooks at {price} euros each cost {each} x {price} = {each * price} euros.")  # fmt: skip
    for _ in range(8):
        speed, hours = rng.choice([40, 50, 60, 80, 90, 120]), rng.randint(2, 6)
        yield row("How far does the train travel?",
                  f"It travels {speed} km/h x {hours} h = {speed * hours} kilometres.",
                  f"A train runs at a constant {speed} km/h for {hours} hours.")  # fmt: skip
    for _ in range(6):
        width, height = rng.randint(3, 15), rng.randint(3, 15)
        yield row("Find the area and the perimeter of the rectangle.",
                  f"The area is {width * height} square metres and the perimeter is {2 * (width + height)} metres.",
                  f"A rectangle is {width} metres wide and {height} metres long.")  # fmt: skip


def conversions(rng):
    units = [("kilometres", "metres", 1000), ("hours", "minutes", 60), ("kilograms", "grams", 1000),
             ("metres", "centimetres", 100), ("days", "hours", 24), ("weeks", "days", 7),
             ("litres", "millilitres", 1000)]  # fmt: skip
    for large, small, factor in units:
        for _ in range(3):
            value = rng.randint(2, 30)
            yield row(f"Convert {value} {large} to {small}.", f"{value} {large} are {value * factor} {small}.")
    for celsius in (-40, -10, 0, 20, 37, 100):
        fahrenheit = number_text(celsius * 9 / 5 + 32)
        yield row("Convert the temperature to Fahrenheit.", f"{celsius} °C is {fahrenheit} °F.", f"{celsius} °C")
    for percent in (5, 10, 25, 40, 75):
        base = rng.randint(2, 40) * 20
        yield row(f"What is {percent} percent of {base}?",
                  f"{percent} percent of {base} is {number_text(base * percent / 100)}.")  # fmt: skip


def sequences(rng):
    for _ in range(10):
        numbers = rng.sample(range(1, 100), rng.randint(4, 7))
        text = ", ".join(map(str, numbers))
        yield row("Sort the numbers in ascending order.", ", ".join(map(str, sorted(numbers))), text)
    for _ in range(8):
        words = rng.sample(WORDS, rng.randint(4, 6))
        yield row("Put the words in alphabetical order.", ", ".join(sorted(words)), ", ".join(words))
    for _ in range(8):
        first, difference = rng.randint(1, 20), rng.randint(2, 9)
        terms = [first + i * difference for i in range(6)]
        yield row("What is the next number of the sequence?",
                  f"Each number is {difference} more than the one before, so the next one is {terms[5]}.",
                  ", ".join(map(str, terms[:5])))  # fmt: skip
    for _ in range(6):
        numbers = rng.sample(range(1, 60), 5)
        text = ", ".join(map(str, numbers))
        yield row("Which of these numbers are even?",
                  ", ".join(str(n) for n in numbers if n % 2 == 0) or "None of them is even.", text)  # fmt: skip
    for _ in range(6):
        numbers = rng.sample(range(1, 60), 4)
        yield row("Find the smallest number, the largest number and the mean.",
                  f"The smallest is {min(numbers)}, the largest is {max(numbers)} and the mean is "
                  f"{number_text(sum(numbers) / 4)}.", ", ".join(map(str, numbers)))  # fmt: skip


def strings(rng):
    words = rng.sample(WORDS, 28)
    for word in words[:7]:
        yield row("Reverse the word.", word[::-1], word)
    for word in words[7:14]:
        yield row(f'How many letters does the word "{word}" have?', f'The word "{word}" has {len(word)} letters.')
    for word in words[14:20]:
        vowels = sum(letter in "aeiou" for letter in word)
        yield row("Count the vowels in the word.", f"{vowels}", word)
    for word in words[20:24]:
        yield row("Write the word in capital letters.", word.upper(), word)
    for word in words[24:]:
        letter, count = sorted(Counter(word).items(), key=lambda item: (-item[1], item[0]))[0]
        yield row(f'How often does the letter "{letter}" occur in "{word}"?', f"{count}")


def grammar(rng):
    for _, third, past, participle in VERBS:
        name, place, time = rng.choice(["Anna", "Clara", "Eva", "Greta"]), rng.choice(PLACES), rng.choice(TIMES)
        yield row("Rewrite the sentence in the past tense.", f"{name} {past} {time}.", f"{name} {third} {time}.")
        yield row("Rewrite the sentence in the present continuous.", f"{name} is {participle} {place}.",
                  f"{name} {third} {place}.")  # fmt: skip
    for base, third, _, _ in VERBS[:8]:
        name, time = rng.choice(["Anna", "Clara", "Eva", "Greta"]), rng.choice(TIMES)
        yield row("Turn the sentence into a question.", f"Does {name} {base} {time}?", f"{name} {third} {time}.")
    for singular, plural in PLURALS.items():
        yield row(f'What is the plural of "{singular}"?', f'The plural of "{singular}" is "{plural}".')
    for word, opposite in OPPOSITES.items():
        yield row("Give an opposite of the word.", opposite, word)


def facts(rng):
    for country, city in CAPITALS.items():
        yield row(f"What is the capital of {country}?", f"The capital of {country} is {city}.")
    for country in rng.sample(sorted(CAPITALS), 5):
        yield row("Name the country of which this city is the capital.", country, CAPITALS[country])
    for element, (symbol, number) in ELEMENTS.items():
        yield row(f"Give the chemical symbol and the atomic number of {element}.",
                  f"The symbol of {element} is {symbol}, and its atomic number is {number}.")  # fmt: skip
    for question, answer in SCIENCE:
        yield row(question, answer)


def language(rng):
    for text, feeling in FEELINGS:
        yield row("Is the tone of this sentence positive or negative?", f"The tone is {feeling}.", text)
    for text, summary in SUMMARIES:
        yield row("Summarise the text in one sentence.", summary, text)
    for instruction, answer in CODE:
        yield row(instruction, answer)
    for _ in range(6):
        words = rng.sample(WORDS, 3)
        yield row("Write the words as a bulleted list.", "\n".join(f"- {word}" for word in words), ", ".join(words))
    for _ in range(5):
        name, age, place = rng.choice(NAMES), rng.randint(20, 70), rng.choice(sorted(CAPITALS.values()))
        yield row("Turn the sentence into a JSON object with the keys name, age and city.",
                  json.dumps({"name": name, "age": age, "city": place}),
                  f"{name} is {age} years old and lives in {place}.")  # fmt: skip


def demo_rows():
    """All rows, each once, in a fixed shuffled order."""
    rng = random.Random(3407)
    rows, seen = [], set()
    for part in (arithmetic, word_problems, conversions, sequences, strings, grammar, facts, language):
        for made in part(rng):
            key = (made["instruction"], made["input"])
            if key not in seen:
                seen.add(key)
                rows.append(made)
    rng.shuffle(rows)
    return rows


def demo_text():
    return json.dumps(demo_rows(), ensure_ascii=False, indent=1) + "\n"


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("alpaca_demo.json")
    path.write_text(demo_text(), encoding="utf-8")
    print(f"{path}: {len(demo_rows())} rows")


if __name__ == "__main__":
    main()
