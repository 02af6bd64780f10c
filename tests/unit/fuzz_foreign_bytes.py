"""Feeds a parser of `test_foreign_bytes` whatever a coverage-guided fuzzer comes up with.

usage: fuzz_foreign_bytes.py PARSER SEEDS [libFuzzer's options]; a parser's own files go beside SEEDS.
"""

import contextlib
import importlib.util
import sys
from pathlib import Path

import atheris


def _harnesses():
    file = Path(__file__).with_name("test_foreign_bytes.py")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    sys.path.insert(0, str(file.parents[1]))  # where the tests' kit is
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    with atheris.instrument_imports(include=["cedos"]):
        spec.loader.exec_module(module)
    return module


def main():
    harnesses, name = _harnesses(), sys.argv.pop(1)
    refusals = harnesses.PARSERS[name].refusals
    # (The fuzzer ends the process: nothing would clean up.)
    call = harnesses.called(name, Path(sys.argv[1]).parent)

    def one(data):
        with contextlib.suppress(*refusals):
            call(data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
