//! Skews of published models.

/// Name of a model and the size of its largest tensor as a part of its size (Gu, 2021, table 3.3).
pub const SKEWS: &[(&str, f64)] = &[
    ("vgg19", 0.715),
    ("vgg16", 0.743),
    ("vgg11", 0.773),
    ("alexnet", 0.610),
    ("resnet152", 0.039),
    ("resnet101", 0.053),
    ("resnet50", 0.092),
    ("inception4", 0.036),
    ("inception3", 0.086),
    ("googlenet", 0.146),
];

/// Returns the skew of a published model.
pub fn skew(model: &str) -> Option<f64> {
    SKEWS.iter().find(|(name, _)| *name == model).map(|(_, skew)| *skew)
}
