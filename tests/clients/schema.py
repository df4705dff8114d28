"""What `takeback schema` is to an editor, seen by a real validator of JSON Schema.

Every policy that is shipped and every valid EffectSpec is valid, and every document of the finding codes that one place of a file shows
is marked. What needs more than one place is `takeback check`'s.
"""
import glob
import json
import os
import pathlib
import re
import subprocess

import jsonschema
import yaml

TOP = pathlib.Path(__file__).resolve().parents[2]

# Codes whose documents an editor marks too.
MARKED = """
effect/deadline_shape policy/condition policy/duration policy/match_http policy/match_target
policy/match_tool policy/missing_member policy/operation_id policy/out_of_range policy/schema_sha256
policy/unknown_member policy/unknown_word policy/version policy/wrong_type spec/empty_assertion_name
spec/empty_completion_predicate spec/empty_stage_id spec/invalid_header_name spec/invalid_pointer
spec/invalid_selector_fields spec/invalid_status spec/too_many_stages spec/unsupported_plan_version
spec/webhook_without_event_types spec/untrusted_cannot_verify
""".split()


class Loader(yaml.SafeLoader):
    """YAML as policies have it: JSON's words and numbers, all else is text."""


Loader.yaml_implicit_resolvers = {}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))
Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^(?:null|~|)$"), ["n", "~", ""])
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile("^-?[0-9]+$"), list("-0123456789"))


def vectors(name):
    return json.loads((TOP / "tests/vectors" / name).read_text())


def main():
    printed = subprocess.run([os.environ["PROGRAM"], "schema"], check=True, capture_output=True).stdout
    schema = json.loads(printed)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    shipped = sorted(glob.glob(str(TOP / "policies/*/*.yaml")))
    assert len(shipped) > 10, shipped
    for path in shipped:
        document = yaml.load(pathlib.Path(path).read_text(), Loader)
        for error in validator.iter_errors(document):
            raise AssertionError(f"{path}: {error.json_path}: {error.message}")

    effects = [case["spec"] for case in vectors("effectspec.json")["valid"]]
    effects.append({"class": "reversible", "inverse": {
        "operation": "o", "arguments": {"body.title": "before.title", "path.id": {"const": 1}}}})
    for effect in effects:
        operation = {"match": {"http": "PUT /a/{id}"}, "effect": effect}
        document = {"version": 1, "operations": {"o": operation}}
        for error in validator.iter_errors(document):
            raise AssertionError(f"{effect}: {error.json_path}: {error.message}")

    for code in MARKED:
        case = (TOP / "tests/vectors/findings" / f"{code.replace('/', '.')}.txt").read_text()
        files = dict(part.split("\n", 1) for part in case.split("== ")[1:])
        document = yaml.load(files["a.yaml"], Loader)
        assert not validator.is_valid(document), f"{code} is not marked"

    print(f"schema: {len(shipped)} policies are valid, {len(MARKED)} faults are marked")


main()
