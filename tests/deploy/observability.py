"""Rules, their tests, the dashboard and the runbooks against each other and against the golden metrics.

Every metric, label and label value that a query uses is served; every alert has a runbook, a test in which it
fires and one in which it is silent; the dashboard keeps what Grafana's own linter asks for."""
import json
import re
import sys

import promql_parser
import yaml

import renders

PLACE = renders.TOP / "deploy/observability"
GOLDEN = renders.TOP / "tests/golden/metrics.txt"
# Labels that a scrape or the operator adds.
SCRAPED = {"container", "instance", "job", "le", "namespace", "pod"}
SEVERITIES = ("critical", "info", "warning")
RUNBOOKS = "https://runbooks.example/takeback#"


def golden():
    """Series names with their type and their labels, each with its values; None is any."""
    known = {}
    for line in GOLDEN.read_text().splitlines():
        name, kind, _, *labels = line.split(" ")
        values = {label: None if given == "*" else set(given.split("|"))
                  for label, given in (each.split("=", 1) for each in labels)}
        names = [f"{name}_{end}" for end in ("bucket", "count", "sum")] if kind == "histogram" else [name]
        known |= {each: (kind, values) for each in names}
    return known


def selectors(expression):
    """The vector selectors of a query, and whether each is inside a rate."""
    found = []

    def walk(node, is_rated):
        match node:
            case promql_parser.VectorSelector():
                found.append((node, is_rated))
            case promql_parser.MatrixSelector():
                found.append((node.vector_selector, is_rated))
            case promql_parser.Call():
                rated = node.func.name in ("increase", "irate", "predict_linear", "rate")
                for each in node.args:
                    walk(each, rated)
            case _:
                for name in ("lhs", "rhs", "expr", "param"):
                    if isinstance(below := getattr(node, name, None), promql_parser.Expr):
                        walk(below, is_rated)

    walk(expression, False)
    return found


def query(where, text, known, recorded, need=()):
    """Faults of one query."""
    for name, value in (("$__rate_interval", "5m"), ("$job", "a"), ("$instance", "b")):
        text = text.replace(name, value)
    try:
        expression = promql_parser.parse(text)
    except ValueError as error:
        yield f"{where}: {error}"
        return
    for selector, is_rated in selectors(expression):
        matchers = {each.name: each for each in selector.matchers.matchers}
        for label in need:
            if label not in matchers:
                yield f"{where}: {selector.name} is not narrowed by {label}"
        if selector.name in recorded:
            continue
        if selector.name not in known:
            yield f"{where}: {selector.name} is not served"
            continue
        kind, labels = known[selector.name]
        if kind in ("counter", "histogram") and not is_rated:
            yield f"{where}: {selector.name} only grows, and is used without a rate"
        for label, matcher in matchers.items():
            if label not in labels and label not in SCRAPED:
                yield f"{where}: {selector.name} has no label {label}"
            values = labels.get(label)
            if values is not None:
                for value in matcher.value.split("|"):
                    if value not in values:
                        yield f"{where}: {selector.name} has never {label}={value}"
    for group in re.findall(r"\bby \(([^)]*)\)", text):
        served = set().union(*(set(known.get(each.name, (0, {}))[1]) for each, _ in selectors(expression)))
        for label in (each.strip() for each in group.split(",")):
            if label not in served | SCRAPED:
                yield f"{where}: nothing in it has the label {label}"


def rules(known):
    given = yaml.safe_load((PLACE / "rules.yaml").read_text())
    every = [rule for group in given["groups"] for rule in group["rules"]]
    # The site's own count of the gateway's writes.
    recorded = {rule["record"] for rule in every if "record" in rule} | {"takeback:gateway_writes:increase1h"}
    alerts = [rule for rule in every if "alert" in rule]
    for rule in every:
        yield from query(rule.get("alert") or rule["record"], rule["expr"], known, recorded)
    names = [rule["alert"] for rule in alerts]
    yield from (f"{name} is there twice" for name in set(names) if names.count(name) > 1)
    text = (PLACE / "runbooks.md").read_text()
    headings = re.findall(r"^## (\S+)$", text, re.M)
    for name in set(headings) ^ set(names):
        yield f"{name} is not both an alert and a heading of the runbooks"
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        if anchor not in {name.lower() for name in headings}:
            yield f"runbooks: there is no heading {anchor}"
    tested = yaml.safe_load((PLACE / "rules_test.yaml").read_text())["tests"]
    tries = [each for test in tested for each in test.get("alert_rule_test", [])]
    for rule in alerts:
        name, notes = rule["alert"], rule.get("annotations", {})
        if rule.get("labels", {}).get("severity") not in SEVERITIES:
            yield f"{name}: severity"
        if set(notes) != {"summary", "description", "runbook_url"}:
            yield f"{name}: its annotations are {sorted(notes)}"
        if notes.get("runbook_url") != RUNBOOKS + name.lower():
            yield f"{name}: runbook_url"
        fires = [bool(each["exp_alerts"]) for each in tries if each["alertname"] == name]
        if set(fires) != {True, False}:
            yield f"{name}: it needs a test in which it fires and one in which it is silent"
    print(f"{len(alerts)} alerts, {len(every) - len(alerts)} recording rules, {len(tries)} tries of alerts")


def dashboard(known):
    given = json.loads((PLACE / "dashboard.json").read_text())
    if given.get("editable", True) or not given.get("uid"):
        yield "the dashboard can be edited, or has no uid"
    variables = {each["name"]: each for each in given["templating"]["list"]}
    if set(variables) != {"datasource", "instance", "job"}:
        yield f"the dashboard's variables are {sorted(variables)}"
    for name in ("instance", "job"):
        each = variables[name]
        if (each["refresh"], each["multi"], each["allValue"]) != (2, True, ".+"):
            yield f"variable {name}: refresh, multi or allValue"
    places = set()
    for panel in given["panels"]:
        title = panel.get("title") or "?"
        for what in ("title", "description", "targets"):
            if not panel.get(what):
                yield f"panel {title}: {what}"
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield f"panel {title}: unit"
        if panel["datasource"]["uid"] != "${datasource}":
            yield f"panel {title}: its data source is fixed"
        places.add((panel["gridPos"]["x"], panel["gridPos"]["y"]))
        for target in panel["targets"]:
            yield from query(f"panel {title}", target["expr"], known, set(), ("instance", "job"))
            if re.search(r"\[\d+[smhd]\]", target["expr"]):
                yield f"panel {title}: a fixed range"
    if len(places) != len(given["panels"]):
        yield "panels lie on each other"
    print(f"{len(given['panels'])} panels")


def tried(known):
    """Queries with one fault each must be found."""
    for text in ("rate(takeback_request_total[5m])", "rate(takeback_requests_total{verdict='x'}[5m])",
                 "takeback_requests_total", "rate(takeback_requests_total{class='write'}[5m])",
                 "sum by (reason) (takeback_ready)", "sum by (", "rate(takeback_ready{check='x'}[5m])"):
        if not list(query("tried", text, known, set())):
            yield f"a query with a fault passes: {text}"


def main():
    known = golden()
    assert len(known) > 30, "the golden file is read"
    bad = [*rules(known), *dashboard(known), *tried(known)]
    print("\n".join(bad) or "every metric, label and value that they use is served")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
