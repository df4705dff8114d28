"""What the Dockerfile copies is what a build reads: the manifest's targets, and every file that is included."""
import re
import sys
import tomllib

import renders

DEPLOY = renders.TOP / "deploy"


def main():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") and "--from" not in line
              for name in line.split()[1:-1]}
    shown = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    bad = [f"{name} is copied, or shown to the build, but not both" for name in copied ^ shown]
    manifest = tomllib.loads((renders.TOP / "Cargo.toml").read_text())
    needed = {"Cargo.toml", "Cargo.lock", "src"} | {"benches" for _ in manifest.get("bench", [])}
    included = 0
    for folder in ("src", "benches"):
        for path in (renders.TOP / folder).rglob("*.rs"):
            if "tests" in (path.stem, path.parent.name):
                continue
            built = path.read_text().split("#[cfg(test)]\nmod ")[0]
            for name in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', built):
                included += 1
                needed.add((path.parent / name).resolve().relative_to(renders.TOP).parts[0])
    if (renders.TOP / "build.rs").exists():
        needed.add("build.rs")
    bad += [f"a build needs {name}, which the Dockerfile does not copy" for name in needed - copied]
    assert included, "the program includes files"
    print("\n".join(bad) or f"the Dockerfile copies what a build reads: {', '.join(sorted(needed))}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
