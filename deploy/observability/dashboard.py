#!/usr/bin/env python3
"""Writes dashboard.json: one line here for each panel. `tests/deploy/check renew` calls it."""
import json
import pathlib

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OURS = 'job=~"$job",instance=~"$instance"'
WIDTH, HEIGHT, COLUMNS = 12, 8, 2


def rate(metric, by, more=""):
    return f"sum by ({by}) (rate({metric}{{{OURS}{more}}}[$__rate_interval]))"


def quantiles(metric, by="le"):
    return [
        (f"histogram_quantile({q}, {rate(metric + '_bucket', by)})", name)
        for q, name in ((0.5, "p50"), (0.99, "p99"))
    ]


PANELS = [
    ("Calls by decision", "What the proxy did with each call.", "reqps",
     [(rate("takeback_requests_total", "decision"), "{{decision}}")]),
    ("Calls by class", "Undeclared writes count as irreversible.", "reqps",
     [(rate("takeback_requests_total", "class"), "{{class}}")]),
    ("What became of writes", "Disposition of the upstream's answers to writes.", "reqps",
     [(rate("takeback_upstream_outcomes_total", "outcome"), "{{outcome}}")]),
    ("Verdicts", "What the declared evidence says of accepted writes.", "reqps",
     [(rate("takeback_verifications_total", "verdict"), "{{verdict}}")]),
    ("Open entries", "Entries that are not final.", "short",
     [(f"sum by (state) (takeback_ledger_entries{{{OURS}}})", "{{state}}")]),
    ("Age of the oldest open entry", "A begun entry that is older than a call can run is a fault.", "s",
     [(f"time() - min by (state) (takeback_ledger_oldest_entry_timestamp_seconds{{{OURS}}} > 0)",
       "{{state}}")]),
    ("Ledger write time", "One durable write, with its fsync.", "s",
     [(query, name + " {{stage}}")
      for query, name in quantiles("takeback_ledger_write_duration_seconds", "le, stage")]),
    ("Ledger writes that failed", "Anything above zero refuses writes.", "ops",
     [(rate("takeback_ledger_writes_total", "stage", ',result="error"'), "{{stage}}")]),
    ("Time in the proxy", "A call's time without the upstream's.", "s",
     quantiles("takeback_proxy_overhead_seconds")),
    ("Time of calls", "From the first byte of a call to the last of its answer.", "s",
     quantiles("takeback_request_duration_seconds")),
    ("Confirmations", "Asked for, accepted, and given for another call.", "reqps",
     [(rate("takeback_confirmations_total", "result"), "{{result}}")]),
    ("Repeats", "Calls that were in the ledger already.", "reqps",
     [(rate("takeback_duplicates_total", "result"), "{{result}}")]),
    ("Undeclared writes", "Writes that no policy names.", "reqps",
     [(rate("takeback_requests_total", "transport",
            ',operation="_undeclared",class="irreversible"'), "{{transport}}")]),
    ("Refused unread", "Ambiguous paths, odd framing, bodies too long, no room.", "reqps",
     [(rate("takeback_rejected_requests_total", "reason"), "{{reason}}")]),
    ("Undo reports", "Whether a write could be reported with the call that takes it back.", "reqps",
     [(rate("takeback_undo_reports_total", "kind, availability"), "{{kind}} {{availability}}")]),
    ("Undo calls", "Calls that took an earlier one back.", "reqps",
     [(rate("takeback_undo_calls_total", "kind, outcome"), "{{kind}} {{outcome}}")]),
    ("Lookups of unknown writes", "What reconciliation found.", "reqps",
     [(rate("takeback_reconciliations_total", "result"), "{{result}}")]),
    ("Connections to the gateway that failed", "By reason; nothing was sent.", "ops",
     [(rate("takeback_upstream_connect_errors_total", "reason"), "{{reason}}")]),
    ("Room on the ledger's volume", "Without room writes are refused.", "percentunit",
     [(f"takeback_ledger_volume_free_bytes{{{OURS}}} / takeback_ledger_volume_size_bytes{{{OURS}}}",
       "{{instance}}")]),
    ("Memory", "Of the process; held bodies are bounded by limits.body_budget_bytes.", "bytes",
     [(f"process_resident_memory_bytes{{{OURS}}} and on (instance) takeback_build_info{{{OURS}}}",
       "{{instance}}")]),
    ("Policies in force", "More than one for long: replicas disagree.", "short",
     [(f"count by (revision) (takeback_policy_info{{{OURS}}} == 1)", "{{revision}}")]),
    ("Checks of readiness", "0 is a check that fails.", "short",
     [(f"min by (check) (takeback_ready{{{OURS}}})", "{{check}}")]),
]


def panel(index, title, description, unit, targets):
    row, column = divmod(index, COLUMNS)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": row * HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": {},
        "targets": [
            {"datasource": SOURCE, "expr": query, "legendFormat": legend, "refId": chr(65 + place)}
            for place, (query, legend) in enumerate(targets)
        ],
    }


def variable(name, label, query):
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query,
        "definition": query, "refresh": 2, "multi": True, "includeAll": True, "allValue": ".+",
        "sort": 1, "current": {}, "options": [], "hide": 0,
    }


DATA_SOURCE = {
    "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
    "current": {}, "options": [], "hide": 0, "refresh": 1, "regex": "",
}

DASHBOARD = {
    "uid": "takeback",
    "title": "takeback",
    "description": "What agents cause through the proxy.",
    "tags": ["takeback", "agents"],
    "schemaVersion": 39,
    "version": 1,
    "editable": False,
    "graphTooltip": 1,
    "time": {"from": "now-6h", "to": "now"},
    "timezone": "utc",
    "refresh": "30s",
    "annotations": {"list": []},
    "links": [],
    "templating": {"list": [
        DATA_SOURCE,
        variable("job", "Job", "label_values(takeback_build_info, job)"),
        variable("instance", "Instance",
                 'label_values(takeback_build_info{job=~"$job"}, instance)'),
    ]},
    "panels": [panel(index, *given) for index, given in enumerate(PANELS)],
}

if __name__ == "__main__":
    place = pathlib.Path(__file__).with_name("dashboard.json")
    place.write_text(json.dumps(DASHBOARD, indent=1) + "\n")
