//! The table of the counters of stages, edges and sinks. One line of it makes the cell that slots write, its plain
//! value for other processes, the merge of the values of two processes of one host, and the metric.

/// Operations of every table of counters.
pub(crate) trait Counted: Clone + Default + PartialEq {
    /// Adds the counts of a former process of the same host.
    fn add(&mut self, before: &Self);

    /// All distributions.
    fn histograms(&self) -> impl Iterator<Item = &crate::histogram::Histogram>;

    /// All distributions, to be changed.
    fn histograms_mut(&mut self) -> impl Iterator<Item = &mut crate::histogram::Histogram>;
}

/// Labels of a metric.
macro_rules! labels {
    ([$($label:literal),*] $($more:literal),*) => { &[$($label,)* $($more),*] };
}

/// A table of counters: the struct with the cells, the struct with their values, and the labels of its metrics. A line is
///
/// ```text
/// /// What it counts.
/// name: Cell, merge, FORM "metric" (labels beside those of the table) Of "help";
/// ```
///
/// where the metric may be left out. `also` has metrics that are not the value of one cell, `here` cells that only their own process
/// has.
macro_rules! counted {
    (
        $(#[$about:meta])* $metrics:ident, $figures:ident, $labels:tt;
        counters {
            $(
                $(#[$doc:meta])* $name:ident: $cell:ty, $merge:ident
                $(, $form:ident $metric:literal ($($own_label:literal $(= $own_value:literal)?),*) $of:ident $help:literal)?;
            )*
        }
        here { $($(#[$here_doc:meta])* $here:ident: $here_cell:ty;)* }
        also {
            $($also_kind:ident $also:literal ($($also_label:literal $(= $also_value:literal)?),*) $also_of:ident $also_help:literal
                = $value:expr;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $metrics {
            $($(#[$doc])* pub $name: $cell,)*
            $($(#[$here_doc])* pub $here: $here_cell,)*
        }

        #[doc = concat!("Values of [`", stringify!($metrics), "`].")]
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(crate) struct $figures {
            $(pub(crate) $name: <$cell as Cell>::Value,)*
        }

        impl $metrics {
            /// The metrics that are served of it.
            pub const SERVED: &'static [Served<Self>] = &[
                $($(Served {
                    metric: Metric {
                        name: $metric,
                        kind: $form.kind,
                        labels: labels!($labels $($own_label),*),
                        help: $help,
                    },
                    of: MetricOf::$of,
                    label: label!($($own_label $(= $own_value)?),*),
                    value: |all, _| ($form.value)(all.$name.read()),
                },)?)*
                $(Served {
                    metric: Metric {
                        name: $also,
                        kind: MetricKind::$also_kind,
                        labels: labels!($labels $($also_label),*),
                        help: $also_help,
                    },
                    of: MetricOf::$also_of,
                    label: label!($($also_label $(= $also_value)?),*),
                    value: $value,
                },)*
            ];
        }

        impl $figures {
            /// Reads the present values.
            pub(crate) fn of(metrics: &$metrics) -> Self {
                Self { $($name: metrics.$name.read(),)* }
            }

            /// Shows the cells that `shows` selects by name.
            pub(crate) fn show(self, metrics: &$metrics, shows: impl Fn(&str) -> bool) {
                $(if shows(stringify!($name)) {
                    metrics.$name.show(self.$name);
                })*
            }
        }

        impl Counted for $figures {
            fn add(&mut self, before: &Self) {
                $(merge::$merge(&mut self.$name, &before.$name);)*
            }

            fn histograms(&self) -> impl Iterator<Item = &Histogram> {
                [$(self.$name.histogram()),*].into_iter().flatten()
            }

            fn histograms_mut(&mut self) -> impl Iterator<Item = &mut Histogram> {
                [$(self.$name.histogram_mut()),*].into_iter().flatten()
            }
        }
    };
}

/// The label that has one value, if there is one.
macro_rules! label {
    () => {
        None
    };
    ($name:literal = $value:literal) => {
        Some(($name, $value))
    };
    ($($name:literal),*) => {
        None
    };
}

pub(crate) use {counted, label, labels};
