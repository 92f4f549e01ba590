"""What programs are given to work on: made once in a run, always the same."""

import os
import random
import subprocess

MIB = 1 << 20


def blob(work, mib):
    """A file of random bytes."""
    path = os.path.join(work, f"blob-{mib}")
    if not os.path.exists(path):
        source = random.Random(7)
        with open(path, "wb") as file:
            for _ in range(mib):
                file.write(source.randbytes(MIB))
    return path


def small_files(place):
    """Many files of 1 to 64 KiB, on the measured file system."""
    top = os.path.join(place.files, "given", "small")
    if not os.path.exists(top):
        source = random.Random(8)
        pool = source.randbytes(4 * MIB)
        for number in range(place.count):
            folder = os.path.join(top, f"{number // 100:03}")
            if number % 100 == 0:
                os.makedirs(folder)
            size = source.randrange(1024, 65537)
            start = source.randrange(len(pool) - size)
            with open(os.path.join(folder, f"file-{number:05}"), "wb") as file:
                file.write(pool[start:start + size])
    return top


def archive(place):
    path = os.path.join(place.files, "given", "small.tar")
    if not os.path.exists(path):
        top = small_files(place)
        subprocess.run(["tar", "cf", path, "-C", os.path.dirname(top), "small"], check=True)
    return path


def function(number):
    """A C function that is long enough to be work for a compiler."""
    steps = "".join(f"    if (word % {step + 2} == {step % 2}) word = word * {2 * step + 3}u + {number % 97};\n"
                    for step in range(12))
    return f"unsigned part_{number}(unsigned word) {{\n{steps}    return word;\n}}\n"


def source_count(place):
    return max(place.count // 2, 8)


def sources(place):
    """Files that look like sources, a few KiB each, in many directories."""
    top = os.path.join(place.work, "sources")
    if not os.path.exists(top):
        lengths = random.Random(9)
        for number in range(source_count(place)):
            folder = os.path.join(top, f"{number // 400}", f"{number // 20 % 20}")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"part_{number}.c"), "w") as file:
                for part in range(lengths.randrange(1, 24)):
                    file.write(function(number * 100 + part))
    return top


def project_count(place):
    return max(place.count // 50, 8)


def project(place):
    """A C project: one object for each source, and a program."""
    top = os.path.join(place.work, "project")
    if not os.path.exists(top):
        os.makedirs(top)
        numbers = range(project_count(place))
        for number in numbers:
            with open(os.path.join(top, f"part_{number}.c"), "w") as file:
                file.write('#include "parts.h"\n#include <stdio.h>\n' + function(number))
        with open(os.path.join(top, "parts.h"), "w") as file:
            file.writelines(f"unsigned part_{number}(unsigned);\n" for number in numbers)
        with open(os.path.join(top, "main.c"), "w") as file:
            calls = "".join(f"    word = part_{number}(word);\n" for number in numbers)
            file.write(f'#include "parts.h"\n#include <stdio.h>\nint main(void) {{\n    unsigned word = 1;\n{calls}'
                       '    printf("%u\\n", word);\n    return 0;\n}\n')
        with open(os.path.join(top, "Makefile"), "w") as file:
            file.write("objects := $(patsubst %.c,%.o,$(sort $(wildcard *.c)))\nCFLAGS = -O1\n\n"
                       "program: $(objects)\n\t$(CC) -o $@ $^\n\n$(objects): parts.h\n")
    return top


def project_says(place):
    """What the program must print: the same sums."""
    word = 1
    for number in range(project_count(place)):
        for step in range(12):
            if word % (step + 2) == step % 2:
                word = (word * (2 * step + 3) + number % 97) & 0xFFFFFFFF
    return f"{word}\n"
