//! Content of the dashboard. `$workflow` and `$run` are selected; a run without a cluster has no label `run`, which `.*`
//! matches too.

/// A row of the dashboard.
pub(super) struct Row {
    pub(super) title: &'static str,
    /// Number of panels side by side.
    pub(super) in_a_line: u32,
    pub(super) panels: &'static [Panel],
}

/// A panel.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) tells: &'static str,
    pub(super) show: Show,
    pub(super) unit: Unit,
    pub(super) queries: &'static [Query],
}

/// Form of a panel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    /// The current number.
    Figure,
    /// Its course over time.
    Course,
}

/// Unit of the values.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    PerSecond,
    Seconds,
    Part,
    Bytes,
    BytesPerSecond,
    DollarsPerHour,
    Count,
}

/// A query to Prometheus.
pub(super) struct Query {
    pub(super) expression: &'static str,
    pub(super) legend: &'static str,
}

const fn query(expression: &'static str, legend: &'static str) -> Query {
    Query { expression, legend }
}

/// All rows, the most important first.
pub(super) const ROWS: &[Row] = &[
    Row {
        title: "Service levels",
        in_a_line: 4,
        panels: &[
            Panel {
                title: "Levels missed now",
                tells: "Service levels that the last window missed.",
                show: Show::Figure,
                unit: Unit::Count,
                queries: &[query(r#"sum(tidemill_slo_missed{workflow=~"$workflow",run=~"$run"})"#, "missed")],
            },
            Panel {
                title: "Records that arrive",
                tells: "Records that sinks commit, each once.",
                show: Show::Figure,
                unit: Unit::PerSecond,
                queries: &[query(
                    r#"sum(rate(tidemill_sink_records_total{workflow=~"$workflow",run=~"$run"}[$__rate_interval]))"#,
                    "arrive",
                )],
            },
            Panel {
                title: "Cost now",
                tells: "Cost per hour of the workers of the plan and of the traffic of the last seconds.",
                show: Show::Figure,
                unit: Unit::DollarsPerHour,
                queries: &[query(
                    r#"sum(tidemill_run_cost_dollars_per_hour{workflow=~"$workflow",run=~"$run",basis="now"})"#,
                    "$/h",
                )],
            },
            Panel {
                title: "Workers",
                tells: "Workers of the cluster by state.",
                show: Show::Figure,
                unit: Unit::Count,
                queries: &[query(r#"sum by (state) (tidemill_controller_workers)"#, "{{state}}")],
            },
        ],
    },
    Row {
        title: "Rates and times",
        in_a_line: 2,
        panels: &[
            Panel {
                title: "End-to-end latency",
                tells: "From the intended emission at the source until readers of a sink can see the record.",
                show: Show::Course,
                unit: Unit::Seconds,
                queries: &[
                    query(
                        r#"histogram_quantile(0.5, sum by (le, run, sink) (rate(tidemill_end_to_end_latency_seconds_bucket{workflow=~"$workflow",run=~"$run"}[$__rate_interval])))"#,
                        "{{run}} {{sink}} p50",
                    ),
                    query(
                        r#"histogram_quantile(0.99, sum by (le, run, sink) (rate(tidemill_end_to_end_latency_seconds_bucket{workflow=~"$workflow",run=~"$run"}[$__rate_interval])))"#,
                        "{{run}} {{sink}} p99",
                    ),
                ],
            },
            Panel {
                title: "Records emitted and arrived",
                tells: "Records that sources emit and that sinks commit.",
                show: Show::Course,
                unit: Unit::PerSecond,
                queries: &[
                    query(
                        r#"sum by (run, operator) (rate(tidemill_operator_records_total{workflow=~"$workflow",run=~"$run",direction="out"}[$__rate_interval]) and on (run, stage) tidemill_source_ended)"#,
                        "{{run}} {{operator}} gives",
                    ),
                    query(
                        r#"sum by (run, sink) (rate(tidemill_sink_records_total{workflow=~"$workflow",run=~"$run"}[$__rate_interval]))"#,
                        "{{run}} {{sink}} takes",
                    ),
                ],
            },
            Panel {
                title: "Time in stages",
                tells: "99th percentiles of a record's time before its batch is computed, and of that computation.",
                show: Show::Course,
                unit: Unit::Seconds,
                queries: &[
                    query(
                        r#"histogram_quantile(0.99, sum by (le, run, stage) (rate(tidemill_operator_queue_seconds_bucket{workflow=~"$workflow",run=~"$run"}[$__rate_interval])))"#,
                        "{{run}} {{stage}} waits",
                    ),
                    query(
                        r#"histogram_quantile(0.99, sum by (le, run, stage) (rate(tidemill_operator_compute_seconds_bucket{workflow=~"$workflow",run=~"$run"}[$__rate_interval])))"#,
                        "{{run}} {{stage}} computes",
                    ),
                ],
            },
            Panel {
                title: "How busy stages are",
                tells: "The part of its time that a stage computes; the busiest limits the run.",
                show: Show::Course,
                unit: Unit::Part,
                queries: &[query(
                    r#"sum by (run, stage, cluster_worker) (tidemill_operator_busy_ratio{workflow=~"$workflow",run=~"$run"})"#,
                    "{{run}} {{stage}} on {{cluster_worker}}",
                )],
            },
        ],
    },
    Row {
        title: "Queues, traffic and losses",
        in_a_line: 2,
        panels: &[
            Panel {
                title: "Records that wait",
                tells: "In the stages of models, and at senders whose receivers have not taken earlier ones.",
                show: Show::Course,
                unit: Unit::Count,
                queries: &[
                    query(
                        r#"sum by (run, stage) (tidemill_operator_waiting_records{workflow=~"$workflow",run=~"$run"})"#,
                        "{{run}} {{stage}}",
                    ),
                    query(
                        r#"sum by (run, edge) (tidemill_edge_waiting_records{workflow=~"$workflow",run=~"$run"})"#,
                        "{{run}} {{edge}}",
                    ),
                ],
            },
            Panel {
                title: "Traffic between slots",
                tells: "Bytes that are sent from slot to slot, in a process and between machines.",
                show: Show::Course,
                unit: Unit::BytesPerSecond,
                queries: &[query(
                    r#"sum by (run, edge) (rate(tidemill_edge_bytes_total{workflow=~"$workflow",run=~"$run"}[$__rate_interval]))"#,
                    "{{run}} {{edge}}",
                )],
            },
            Panel {
                title: "Records lost, dead letters",
                tells: "Records dropped for freshness, and records that could not be processed; 0 if there are none.",
                show: Show::Course,
                unit: Unit::PerSecond,
                queries: &[
                    query(
                        r#"sum(rate(tidemill_records_dropped_total{workflow=~"$workflow",run=~"$run"}[$__rate_interval])) or vector(0)"#,
                        "dropped",
                    ),
                    query(
                        r#"sum(rate(tidemill_dead_letters_total{workflow=~"$workflow",run=~"$run"}[$__rate_interval])) or vector(0)"#,
                        "dead letters",
                    ),
                ],
            },
            Panel {
                title: "Windows that missed a level",
                tells: "Part of the windows of the last minutes; alerts allow 1 % per month.",
                show: Show::Course,
                unit: Unit::Part,
                queries: &[query(
                    r#"sum by (run, slo) (rate(tidemill_slo_violations_total{workflow=~"$workflow",run=~"$run"}[$__rate_interval])) / sum by (run, slo) (rate(tidemill_slo_windows_total{workflow=~"$workflow",run=~"$run"}[$__rate_interval]) > 0)"#,
                    "{{run}} {{slo}}",
                )],
            },
        ],
    },
    Row {
        title: "The cluster",
        in_a_line: 2,
        panels: &[
            Panel {
                title: "Workers with heartbeats",
                tells: "1 while the controller receives heartbeats of a worker, else 0.",
                show: Show::Course,
                unit: Unit::Count,
                queries: &[query(
                    r#"max by (cluster_worker, tier) (tidemill_controller_worker_alive)"#,
                    "{{tier}} {{cluster_worker}}",
                )],
            },
            Panel {
                title: "Cost, predicted and now",
                tells: "Cost that the plan expects, and present cost of the workers and the traffic.",
                show: Show::Course,
                unit: Unit::DollarsPerHour,
                queries: &[query(
                    r#"sum by (run, basis) (tidemill_run_cost_dollars_per_hour{workflow=~"$workflow",run=~"$run"})"#,
                    "{{run}} {{basis}}",
                )],
            },
            Panel {
                title: "Memory",
                tells: "Of the controller and of the agents, without the processes of runs.",
                show: Show::Course,
                unit: Unit::Bytes,
                queries: &[query(r#"process_resident_memory_bytes"#, "{{job}} {{instance}}")],
            },
            Panel {
                title: "Certificates",
                tells: "Remaining validity of the certificate that expires first.",
                show: Show::Course,
                unit: Unit::Seconds,
                queries: &[
                    query(r#"min(tidemill_controller_certificate_seconds)"#, "controller"),
                    query(r#"min(tidemill_controller_worker_certificate_seconds)"#, "workers"),
                ],
            },
        ],
    },
];
