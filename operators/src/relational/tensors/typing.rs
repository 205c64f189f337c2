//! Types of the parts of an expression that read tensors.
use super::measures::{Pair, Reduction};
use super::source::Source;
use super::{Derived, PREFIX, What};
use crate::relational::expression::{ExpressionError, Part};
use crate::relational::typing::{Kind, Typing};
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators as op};
use tidemill_spec::types::{Column, ColumnType, ElementType};

/// The functions of tensors, as they are called.
pub(in crate::relational) const FUNCTIONS: &[(&str, &str)] = &[
    ("max", "max(t)"),
    ("min", "min(t)"),
    ("sum", "sum(t)"),
    ("mean", "mean(t)"),
    ("norm", "norm(t)"),
    ("argmax", "argmax(t)"),
    ("argmin", "argmin(t)"),
    ("dot", "dot(a, b)"),
    ("cosine", "cosine(a, b)"),
    ("distance", "distance(a, b)"),
    ("top_k", "top_k(t, 5)"),
    ("top_positions", "top_positions(t, 5)"),
];

/// The start of names that stand for tensors.
const TENSOR: &str = "_tensor ";

/// Type of one value of a tensor.
pub(super) fn element_kind(element: ElementType) -> Kind {
    match element {
        ElementType::Text => Kind::Text,
        ElementType::Bool => Kind::Bool,
        element if element.is_float() => Kind::Float,
        _ => Kind::Int,
    }
}

/// What to write where a tensor stands and a plain value is needed.
pub(in crate::relational) fn advice(source: &Source, whole: &str) -> String {
    let Source { element, shape, shown, .. } = source;
    let first = format!("{shown}{}", "[0]".repeat(shape.len()));
    let written = |part: &str| match whole.trim() {
        whole if whole.matches(shown.as_str()).count() == 1 && !whole.contains('\n') && whole != shown => {
            whole.replace(shown.as_str(), part)
        }
        _ => part.to_owned(),
    };
    let count: usize = shape.iter().product();
    match element {
        ElementType::Text => {
            format!("`{shown}` has {count} texts: write `'...' in {shown}`, or `{}` for one", written(&first))
        }
        ElementType::Bool => format!("`{shown}` has {count} values: write `{}` for one", written(&first)),
        _ => format!(
            "`{shown}` has {count} values: write `{}`, or `{}` for one of them",
            written(&format!("max({shown})")),
            written(&first)
        ),
    }
}

/// What a call gives.
enum Given {
    Tensor(Source),
    Value(What),
}

impl Typing<'_> {
    /// Returns the tensor that a node gives, if it gives one. A node that gives a plain value of tensors
    /// becomes the name of a derived column, and one that gives a computed tensor the name of that.
    pub(in crate::relational) fn tensor(
        &mut self,
        node: &mut IdedExpr,
    ) -> Result<Option<Source>, ExpressionError> {
        let here = IdedExpr { id: node.id, expr: Expr::Unspecified };
        let given = match &mut node.expr {
            Expr::Ident(name) => match self.named_tensor(name) {
                Some(source) if source.shape.is_empty() => Given::Value(What::Value(source)),
                other => return Ok(other),
            },
            Expr::Call(call) => match self.tensor_call(&here, call)? {
                Some(given) => given,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(match given {
            Given::Tensor(source) => {
                node.expr = Expr::Ident(format!("{TENSOR}{}", self.tensors.len()));
                self.tensors.push(source.clone());
                Some(source)
            }
            Given::Value(what) => {
                node.expr = Expr::Ident(self.derive(what));
                None
            }
        })
    }

    /// The tensor of this name: one of the input's columns or one that is computed.
    fn named_tensor(&self, name: &str) -> Option<Source> {
        if let Some(number) = name.strip_prefix(TENSOR) {
            return number.parse::<usize>().ok().and_then(|number| self.tensors.get(number)).cloned();
        }
        let place = self.input.index_of(name)?;
        match &self.input.columns[place].column_type {
            ColumnType::Tensor { element, shape } => Some(Source::column(name, place, *element, shape)),
            _ => None,
        }
    }

    /// Adds a derived column, unless there is the same, and returns its name.
    fn derive(&mut self, what: What) -> String {
        let mut name = format!("{PREFIX}{}", what.shown());
        if what.is_plain() {
            if self.derived.iter().any(|derived| derived.name == name) {
                return name;
            }
        } else {
            name = format!("{name} {}", self.derived.len());
        }
        let kind = what.kind();
        if let Some(column_type) = kind.column_type() {
            self.extended.columns.push(Column::new(name.clone(), column_type));
        }
        self.derived.push(Derived { name: name.clone(), kind, what });
        name
    }

    fn tensor_call(
        &mut self,
        here: &IdedExpr,
        call: &mut CallExpr,
    ) -> Result<Option<Given>, ExpressionError> {
        let name = call.func_name.clone();
        // `size` has two forms.
        let receiver = call.target.as_deref_mut().filter(|_| name == "size" && call.args.is_empty());
        if let Some(receiver) = receiver {
            return Ok(self.tensor(receiver)?.map(|source| Given::Value(What::Size(source))));
        }
        if call.target.is_some() {
            return Ok(None);
        }
        match (name.as_str(), call.args.as_mut_slice()) {
            (op::INDEX, [of, index]) => self.indexed(here, of, index).map(Some),
            (op::EQUALS, [a, b]) => Ok(self.asked_for_null(a, b)),
            (op::NOT_EQUALS, [a, b]) => {
                let Some(Given::Value(what)) = self.asked_for_null(a, b) else { return Ok(None) };
                let column = IdedExpr { id: here.id, expr: Expr::Ident(self.derive(what)) };
                // `!=` is the opposite of the question.
                call.func_name = op::LOGICAL_NOT.into();
                call.args = vec![column];
                Ok(None)
            }
            (op::IN, [value, list]) => match self.tensor(list)? {
                Some(source) => self.sought(here, value, source).map(|what| Some(Given::Value(what))),
                None => Ok(None),
            },
            ("size", [of]) => Ok(self.tensor(of)?.map(|source| Given::Value(What::Size(source)))),
            (name, arguments) if FUNCTIONS.iter().any(|(function, _)| *function == name) => {
                self.tensor_function(here, name, arguments).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// `scores == null`.
    fn asked_for_null(&self, a: &IdedExpr, b: &IdedExpr) -> Option<Given> {
        let is_null = |node: &IdedExpr| matches!(node.expr, Expr::Literal(LiteralValue::Null));
        let column = if is_null(b) { a } else { Some(b).filter(|_| is_null(a))? };
        let Expr::Ident(name) = &column.expr else { return None };
        let source = self.named_tensor(name)?;
        source.place().map(|_| Given::Value(What::IsNull(source)))
    }

    /// `scores[0]`, `boxes[i]`.
    fn indexed(
        &mut self,
        here: &IdedExpr,
        of: &mut IdedExpr,
        index: &mut IdedExpr,
    ) -> Result<Given, ExpressionError> {
        let Some(source) = self.tensor(of)? else {
            let kind = self.check(of)?;
            let error = self.wrong(here, format!("only a tensor has positions, found {kind}"));
            return Err(match kind {
                Kind::Text => error.with_help("write `t.substring(0, 1)` for a part of a text"),
                _ => error,
            });
        };
        let length = source.shape.first().copied().unwrap_or(0);
        let found = match whole_literal(index) {
            Some(position) => {
                let position = usize::try_from(position).ok().filter(|position| *position < length);
                let Some(position) = position else {
                    return Err(self.no_such_position(here, &source, index));
                };
                source.at(position)
            }
            None => match self.check(index)? {
                Kind::Int => {
                    let index = Part::new(index.clone(), &self.extended);
                    source.at_computed(index)
                }
                Kind::Text => {
                    return Err(self
                        .wrong(here, "a position is a whole number, found text")
                        .with_help("positions have no names; they count from 0"));
                }
                kind => {
                    return Err(self
                        .wrong(here, format!("a position is a whole number, found {kind}"))
                        .with_help("convert with `int(x)`"));
                }
            },
        };
        Ok(if found.shape.is_empty() { Given::Value(What::Value(found)) } else { Given::Tensor(found) })
    }

    fn no_such_position(&self, here: &IdedExpr, source: &Source, index: &IdedExpr) -> ExpressionError {
        let Source { shown, shape, .. } = source;
        let asked = whole_literal(index).unwrap_or_default();
        let error =
            self.wrong(here, format!("`{shown}` is {}, it has no position {asked}", source.column_type()));
        match shape.first().copied().unwrap_or(0) {
            0 => error.with_help(format!("`{shown}` has no values")),
            length => {
                error.with_help(format!("positions count from 0: the last one is `{shown}[{}]`", length - 1))
            }
        }
    }

    /// `x in labels`.
    fn sought(
        &mut self,
        here: &IdedExpr,
        value: &mut IdedExpr,
        source: Source,
    ) -> Result<What, ExpressionError> {
        let kind = self.check(value)?;
        let fits = match source.element {
            ElementType::Text => kind == Kind::Text,
            element => element.is_integer() && kind == Kind::Int,
        };
        if fits {
            return Ok(What::Holds(source, Part::new(value.clone(), &self.extended), kind));
        }
        let message = format!("`in` looks for {kind} in {}", source.column_type());
        let help = match source.element {
            ElementType::Text => "write a text in quotes on the left".to_owned(),
            element if element.is_integer() => "write a whole number on the left".to_owned(),
            ElementType::Bool => format!("write `{}[0]` for one value", source.shown),
            _ => format!("floats are rarely equal: compare, as in `max({}) >= 0.5`", source.shown),
        };
        Err(self.wrong(here, message).with_help(help))
    }

    fn tensor_function(
        &mut self,
        here: &IdedExpr,
        name: &str,
        arguments: &mut [IdedExpr],
    ) -> Result<Given, ExpressionError> {
        let form = FUNCTIONS.iter().find(|(function, _)| *function == name).map_or(name, |(_, form)| form);
        let two = Pair::named(name);
        let wanted = if Reduction::named(name).is_some() { 1 } else { 2 };
        if arguments.len() != wanted {
            let many = if wanted == 1 { "one tensor" } else { "two arguments" };
            let error =
                self.wrong(here, format!("`{name}` needs {many}, found {} arguments", arguments.len()));
            return Err(match (name, arguments.len()) {
                ("max", 2) => error.with_help("for the larger of two numbers write `a > b ? a : b`"),
                ("min", 2) => error.with_help("for the smaller of two numbers write `a < b ? a : b`"),
                _ => error.with_help(format!("write `{form}`")),
            });
        }
        let mut sources = Vec::new();
        let tensors = if two.is_some() { 2 } else { 1 };
        for argument in &mut arguments[..tensors] {
            match self.tensor(argument)? {
                Some(source) if source.element.is_float() || source.element.is_integer() => {
                    sources.push(source);
                }
                Some(source) => {
                    let found = source.column_type();
                    return Err(
                        self.wrong(here, format!("`{name}` needs a tensor of numbers, found {found}"))
                    );
                }
                None => {
                    let kind = self.check(argument)?;
                    let error = self.wrong(here, format!("`{name}` needs a tensor, found {kind}"));
                    return Err(error.with_help(format!("write `{form}` of a tensor column")));
                }
            }
        }
        let mut sources = sources.into_iter();
        let (Some(source), other) = (sources.next(), sources.next()) else {
            return Err(self.wrong(here, format!("`{name}` needs a tensor")));
        };
        if let (Some(pair), Some(other)) = (two, other) {
            if source.shape != other.shape {
                let message = format!(
                    "`{name}` needs two tensors of one shape, found {} and {}",
                    source.column_type(),
                    other.column_type()
                );
                return Err(self.wrong(here, message));
            }
            return Ok(Given::Value(What::Compared(pair, source, other)));
        }
        let reduction = Reduction::named(name);
        if reduction.is_none_or(Reduction::is_position) && source.shape.len() != 1 {
            let message = format!("`{name}` needs a tensor of one dimension, found {}", source.column_type());
            return Err(self
                .wrong(here, message)
                .with_help(format!("write `{}[0]` for a row", source.shown)));
        }
        if let Some(reduction) = reduction {
            if reduction.needs_values() && source.count() == 0 {
                let message =
                    format!("`{name}` needs a value, `{}` is {}", source.shown, source.column_type());
                return Err(self.wrong(here, message));
            }
            return Ok(Given::Value(What::Reduced(reduction, source)));
        }
        let most = source.count();
        match arguments.get(1).and_then(whole_literal).and_then(|k| usize::try_from(k).ok()) {
            Some(k) if (1..=most).contains(&k) => {
                Ok(Given::Tensor(source.largest(k, name == "top_positions")))
            }
            _ => Err(self
                .wrong(here, format!("`{name}` needs a number from 1 to {most} as its second argument"))
                .with_help(format!("write it as a constant: `{name}({}, {})`", source.shown, most.min(5)))),
        }
    }
}

/// The value of a whole number that is written out, with its sign.
fn whole_literal(node: &IdedExpr) -> Option<i64> {
    match &node.expr {
        Expr::Literal(LiteralValue::Int(value)) => Some(*value.inner()),
        Expr::Call(CallExpr { func_name, args, .. }) if func_name == op::NEGATE => match args.as_slice() {
            [inner] => match &inner.expr {
                Expr::Literal(LiteralValue::Int(value)) => value.inner().checked_neg(),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}
