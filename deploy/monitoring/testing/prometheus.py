"""A Prometheus that scrapes one fleet and judges the alerts on it."""

import json
import math
import re
import time
import urllib.parse
import urllib.request

from processes import Process, wait_for

FAMILY = re.compile(r"^(roundhouse_\w+?)(?:_bucket|_sum|_count)?$")


class Prometheus:
    """Scrapes `targets` every second, and evaluates `rules`, the text of a file, as often."""

    def __init__(self, folder, port, targets, rules):
        folder.mkdir()
        (folder / "alerts.yaml").write_text(rules)
        listed = ", ".join(f'"{target}"' for target in targets)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            "rule_files: [alerts.yaml]\n"
            f"scrape_configs: [{{job_name: roundhouse, static_configs: [{{targets: [{listed}]}}]}}]\n"
        )
        self._url = f"http://127.0.0.1:{port}"
        self._process = Process(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            folder / "prometheus.log",
        )
        # Before the first scrape there is no active orchestrator.
        wait_for("Prometheus has scraped", self._has_scraped)
        self.started_at = time.time() + 1

    def _has_scraped(self):
        self._process.check_running()
        return self._get("query", query="roundhouse_role")["result"] and not self.alerts()

    def _get(self, path, **parameters):
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def alerts(self):
        """The states of the alerts that are not inactive, by their names."""
        states = {}
        for alert in self._get("alerts")["alerts"]:
            name = alert["labels"]["alertname"]
            # One with several series is as its worst.
            if states.get(name) != "firing":
                states[name] = alert["state"]
        return states

    def fired(self, since, until, state="firing"):
        """The alerts that were in a state at some time between two."""
        query = f'count by (alertname) (ALERTS{{alertstate=~"{state}"}})'
        found = self._get("query_range", query=query, start=since, end=until, step="1s")
        return {series["metric"]["alertname"] for series in found["result"]}

    def families(self):
        """The metrics of the product that were scraped."""
        names = self._get("label/__name__/values")
        return {match[1] for match in map(FAMILY.match, names) if match}

    def has_data(self, query):
        """Whether a query had a result with numbers at some time since the start."""
        found = self._get("query_range", query=query, start=self.started_at, end=time.time(), step="1s")
        return any(not math.isnan(float(value)) for series in found["result"] for _, value in series["values"])
