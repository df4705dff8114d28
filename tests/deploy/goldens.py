"""Compares every render with its golden, and files that lie in two places with each other.

`tests/deploy/check renew` writes the goldens and the copies anew; then read the difference."""
import difflib
import pathlib
import subprocess
import sys

import renders

OBSERVABILITY = renders.TOP / "deploy/observability"
COMPONENT = renders.TOP / "deploy/kustomize/components/monitoring"
# Checked for themselves; in a golden they would only be noise.
ELSEWHERE = {"PrometheusRule", "dashboard.json"}


def rule_object():
    """The rules as the operator's object."""
    rules = (OBSERVABILITY / "rules.yaml").read_text().splitlines()
    body = "\n".join("  " + line for line in rules if not line.startswith("#"))
    return ("# Made of deploy/observability/rules.yaml.\napiVersion: monitoring.coreos.com/v1\n"
            f"kind: PrometheusRule\nmetadata:\n  name: takeback\nspec:\n{body}\n")


def copies():
    """What lies in two places: its path and its text."""
    dashboard = (OBSERVABILITY / "dashboard.json").read_text()
    return {
        renders.CHART / "files/rules.yaml": (OBSERVABILITY / "rules.yaml").read_text(),
        renders.CHART / "files/dashboard.json": dashboard,
        COMPONENT / "dashboard.json": dashboard,
        COMPONENT / "prometheusrule.yaml": rule_object(),
    }


def shortened(text):
    """A render without what is checked elsewhere."""
    kept = []
    for part in text.removeprefix("---\n").split("\n---\n"):
        is_elsewhere = any(word in part for word in ELSEWHERE)
        kind = next(line for line in part.splitlines() if line.startswith("kind: "))
        kept.append(f"# {kind}, checked elsewhere" if is_elsewhere else part.strip("\n"))
    return "\n---\n".join(kept) + "\n"


def main():
    is_renewed = sys.argv[1:] == ["renew"]
    if is_renewed:
        subprocess.run([sys.executable, OBSERVABILITY / "dashboard.py"], check=True)
    wanted = dict(copies())
    if is_renewed:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    made = renders.all_renders(renders.VERSIONS[1])
    wanted |= {renders.GOLDENS / f"{name}.yaml": shortened(text) for name, text in made.items()}
    stray = [path for path in renders.GOLDENS.glob("*.yaml") if path not in wanted]
    bad = [f"{path} is of no render" for path in stray]
    for path, text in wanted.items():
        if is_renewed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        there = path.read_text() if path.exists() else ""
        name = str(path.relative_to(renders.TOP))
        bad += difflib.unified_diff(there.splitlines(), text.splitlines(), name, "made", lineterm="")
    assert pathlib.Path(OBSERVABILITY / "dashboard.json").exists()
    print("\n".join(bad) or f"{len(wanted)} files are as they are made")
    if bad:
        print("renew them with `tests/deploy/check renew`")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
