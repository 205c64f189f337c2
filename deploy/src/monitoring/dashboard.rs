//! A dashboard for Grafana: a run and its machines.
use super::panels::{ROWS, Row, Show, Unit};
use crate::layout::Layout;
use serde_json::{Value, json};

/// Version of Grafana's format.
const SCHEMA: u32 = 39;
/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;
/// Height of a panel of the grid.
const HEIGHT: u32 = 8;
/// Height of a row of single figures.
const LOW: u32 = 4;

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// Returns a variable that is selected above the panels.
fn choice(name: &str, label: &str, query: &str) -> Value {
    json!({
        "type": "query",
        "name": name,
        "label": label,
        "datasource": source(),
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": true,
        "includeAll": true,
        "allValue": ".*",
        "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
    })
}

fn unit(unit: Unit) -> Value {
    let (unit, decimals) = match unit {
        Unit::PerSecond => ("ops", Value::Null),
        Unit::Seconds => ("s", Value::Null),
        Unit::Part => ("percentunit", json!(1)),
        Unit::Bytes => ("bytes", Value::Null),
        Unit::BytesPerSecond => ("Bps", Value::Null),
        Unit::DollarsPerHour => ("currencyUSD", json!(4)),
        Unit::Count => ("short", Value::Null),
    };
    let mut defaults = json!({"unit": unit, "min": 0});
    if !decimals.is_null() {
        defaults["decimals"] = decimals;
    }
    json!({"defaults": defaults, "overrides": []})
}

fn row_panels(row: &Row, id: &mut u32, top: &mut u32, panels: &mut Vec<Value>) {
    let mut next = |kind: &str, title: &str, place: (u32, u32, u32, u32)| {
        *id += 1;
        json!({
            "id": *id,
            "type": kind,
            "title": title,
            "gridPos": {"x": place.0, "y": place.1, "w": place.2, "h": place.3},
        })
    };
    let mut head = next("row", row.title, (0, *top, COLUMNS, 1));
    head["collapsed"] = json!(false);
    head["panels"] = json!([]);
    panels.push(head);
    *top += 1;
    let height = if row.panels.iter().all(|panel| panel.show == Show::Figure) { LOW } else { HEIGHT };
    let width = (COLUMNS / row.in_a_line).max(1);
    for (number, panel) in (0u32..).zip(row.panels) {
        let (line, column) = (number / row.in_a_line, number % row.in_a_line);
        let kind = match panel.show {
            Show::Figure => "stat",
            Show::Course => "timeseries",
        };
        let mut shown = next(kind, panel.title, (column * width, *top + line * height, width, height));
        shown["description"] = json!(panel.tells);
        shown["datasource"] = source();
        shown["fieldConfig"] = unit(panel.unit);
        shown["targets"] = (b'A'..)
            .zip(panel.queries)
            .map(|(letter, query)| {
                json!({
                    "refId": char::from(letter).to_string(),
                    "datasource": source(),
                    "editorMode": "code",
                    "expr": query.expression,
                    "legendFormat": query.legend,
                    "range": panel.show == Show::Course,
                    "instant": panel.show == Show::Figure,
                })
            })
            .collect();
        shown["options"] = match panel.show {
            Show::Figure => json!({"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}),
            Show::Course => {
                json!({"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}})
            }
        };
        panels.push(shown);
    }
    *top += u32::try_from(row.panels.len()).unwrap_or_default().div_ceil(row.in_a_line) * height;
}

pub(super) fn dashboard(layout: &Layout) -> Value {
    let mut panels = Vec::new();
    let (mut id, mut top) = (0, 0);
    for row in ROWS {
        row_panels(row, &mut id, &mut top, &mut panels);
    }
    json!({
        "uid": layout.project.chars().take(40).collect::<String>(),
        "title": format!("Tidemill: {}", layout.workflow),
        "tags": ["tidemill"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
                choice("workflow", "Workflow", "label_values(tidemill_run_seconds, workflow)"),
                choice("run", "Run", "label_values(tidemill_run_seconds{workflow=~\"$workflow\"}, run)"),
            ],
        },
        "annotations": {"list": []},
        "panels": panels,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::plan::PlanFile;

    #[test]
    fn panels_do_not_overlap_and_have_ids_of_their_own() {
        let text = include_str!("../../../examples/vqa/plan-two-workers.yaml");
        let plan = PlanFile::parse(text, "plan.yaml").unwrap();
        let layout = Layout::of(&crate::Request {
            controller: Some("local".into()),
            ..crate::Request::new(&plan, text)
        });
        let dashboard = dashboard(&layout.unwrap());
        let panels = dashboard["panels"].as_array().unwrap();
        let mut ids: Vec<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        ids.dedup();
        assert_eq!(ids.len(), panels.len());
        let mut taken = std::collections::BTreeSet::new();
        for panel in panels {
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= u64::from(COLUMNS), "{panel}");
            for (x, y) in
                (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
            {
                assert!(taken.insert((x, y)), "{panel} lies on another one");
            }
        }
    }
}
