"""The Grafana dashboard of ``docs/``: it has the shape that Grafana imports, and asks only for metrics that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from stub_engine import make_config

from octavo.api.metrics import Metrics

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
UNITS = {"short", "percentunit", "s", "reqps"}


def test_the_dashboard_has_what_an_import_needs() -> None:
    assert DASHBOARD["title"] == "Octavo" and re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", DASHBOARD["uid"])
    assert isinstance(DASHBOARD["schemaVersion"], int) and DASHBOARD["schemaVersion"] >= 36
    assert "id" not in DASHBOARD, "an id would overwrite a dashboard of whoever imports it"
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["model_name"]["type"] == "query"
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)


def test_panels_lie_on_the_grid_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not taken & cells, panel["title"]
        taken |= cells


def series() -> dict[str, set[str]]:
    """Every series that a server has, with its labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(Metrics("m", make_config(300)).render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_expression_asks_for_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    known = series()
    assert panel["targets"] and panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        expression = target["expr"]
        asked = re.findall(r"(octavo:\w+)\{([^}]*)\}", expression)
        assert asked and len(asked) == expression.count("octavo:")
        labels = set(re.findall(r"by \((\w+)\)", expression)) | set(
            re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        )
        for name, selector in asked:
            assert name in known, name
            labels |= set(re.findall(r"(\w+)=~?", selector))
            assert labels <= known[name] | {"le"}
            # A total only says something as a rate; a gauge never is one.
            assert name.endswith(("_total", "_bucket")) == bool(re.search(r"(rate|increase)\(" + name, expression))
        assert expression.count("(") == expression.count(")")
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)
