//! Static types of expressions. Every node gets a type from the columns below it, and whole numbers beside floats are
//! turned into floats in the tree: CEL has no such conversions and would fail at run time.
use super::expression::{ExpressionError, Mistake};
use super::tensors::{self, Derived, Source};
use super::{common_mistakes, float_order, text_length, widening};
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, SourceInfo, operators as op};
use cel::common::types::CelDouble;
use std::collections::BTreeSet;
use std::fmt;
use tidemill_spec::diagnostic::suggestion;
use tidemill_spec::types::{ColumnType, ElementType, StreamType};

/// Type of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Float,
    Bool,
    Text,
    Null,
    List(Box<Kind>),
    Tensor(ElementType, Vec<usize>),
}

impl Kind {
    pub(crate) fn column_type(&self) -> Option<ColumnType> {
        match self {
            Kind::Int => Some(ColumnType::Int64),
            Kind::Float => Some(ColumnType::Float64),
            Kind::Bool => Some(ColumnType::Bool),
            Kind::Text => Some(ColumnType::Text),
            Kind::Tensor(element, shape) => {
                Some(ColumnType::Tensor { element: *element, shape: shape.clone() })
            }
            Kind::Null | Kind::List(_) => None,
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Kind::Int | Kind::Float)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Int => f.write_str("int64"),
            Kind::Float => f.write_str("float64"),
            Kind::Bool => f.write_str("bool"),
            Kind::Text => f.write_str("text"),
            Kind::Null => f.write_str("null"),
            Kind::List(item) => write!(f, "list of {item}"),
            Kind::Tensor(element, shape) => {
                write!(f, "{}", ColumnType::Tensor { element: *element, shape: shape.clone() })
            }
        }
    }
}

/// Turns a whole-number node into a float: a literal by its value, any other by a conversion that keeps an empty
/// value empty.
pub(crate) fn widen(node: &mut IdedExpr) {
    if let Expr::Literal(LiteralValue::Int(value)) = &node.expr {
        node.expr = Expr::Literal(LiteralValue::Double(CelDouble::from(*value.inner() as f64)));
        return;
    }
    let inner = std::mem::take(node);
    let id = inner.id;
    let call = CallExpr { func_name: widening::WIDEN.into(), target: None, args: vec![inner] };
    *node = IdedExpr { id, expr: Expr::Call(call) };
}

/// Functions by name: (arguments with the receiver first, result). A number argument accepts both kinds.
const FUNCTIONS: &[(&str, &[Argument], Kind)] = {
    use Argument::{Any, Float, Int, Text};
    &[
        ("size", &[Text], Kind::Int),
        ("contains", &[Text, Text], Kind::Bool),
        ("startsWith", &[Text, Text], Kind::Bool),
        ("endsWith", &[Text, Text], Kind::Bool),
        ("matches", &[Text, Text], Kind::Bool),
        ("lowerAscii", &[Text], Kind::Text),
        ("upperAscii", &[Text], Kind::Text),
        ("trim", &[Text], Kind::Text),
        ("replace", &[Text, Text, Text], Kind::Text),
        ("substring", &[Text, Int], Kind::Text),
        ("substring", &[Text, Int, Int], Kind::Text),
        ("indexOf", &[Text, Text], Kind::Int),
        ("int", &[Any], Kind::Int),
        ("double", &[Any], Kind::Float),
        ("string", &[Any], Kind::Text),
        ("bool", &[Text], Kind::Bool),
        ("math.ceil", &[Float], Kind::Float),
        ("math.floor", &[Float], Kind::Float),
        ("math.round", &[Float], Kind::Float),
    ]
};

/// Whether a function is written with a dot after its first argument.
fn is_method(name: &str) -> bool {
    !matches!(name, "int" | "double" | "string" | "bool" | "math.ceil" | "math.floor" | "math.round")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument {
    Text,
    Int,
    /// A whole number is turned into a float.
    Float,
    Any,
}

/// Types the nodes of one expression.
pub(crate) struct Typing<'a> {
    text: &'a str,
    pub(super) input: &'a StreamType,
    places: &'a SourceInfo,
    used: BTreeSet<usize>,
    /// The tensors that are computed, by the numbers in their names.
    pub(super) tensors: Vec<Source>,
    /// What is computed from tensors, in this order.
    pub(super) derived: Vec<Derived>,
    /// The input with the derived columns behind it.
    pub(super) extended: StreamType,
}

/// Position in an expression: the character if it is not the first, the line if there are several.
fn place(text: &str, start: usize) -> String {
    let text = text.trim_end();
    if text.contains('\n') {
        let before: String = text.chars().take(start).collect();
        let line = before.matches('\n').count();
        let shown = text.lines().nth(line).unwrap_or_default().trim();
        return format!("in line {} of the expression, `{shown}`", line + 1);
    }
    match start {
        0 => format!("in `{text}`"),
        _ => format!("at character {} of `{text}`", start + 1),
    }
}

impl<'a> Typing<'a> {
    pub(crate) fn new(text: &'a str, input: &'a StreamType, places: &'a SourceInfo) -> Self {
        Self {
            text,
            input,
            places,
            used: BTreeSet::new(),
            tensors: Vec::new(),
            derived: Vec::new(),
            extended: input.clone(),
        }
    }

    /// Positions of the columns that the expression reads.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> + '_ {
        self.used.iter().copied()
    }

    pub(super) fn wrong(&self, node: &IdedExpr, message: impl fmt::Display) -> ExpressionError {
        let start = self.places.offset_for(node.id).map_or(0, |(start, _)| start as usize);
        ExpressionError::new(format!("{message} ({})", place(self.text, start)))
    }

    fn wrong_pattern(&self, here: &IdedExpr, pattern: &str, error: &regex::Error) -> ExpressionError {
        // The library draws the position over several lines; the last one has the message.
        let text = error.to_string();
        let why = text.lines().last().unwrap_or_default().trim();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        self.wrong(here, format!("`{pattern}` is not a regular expression: {why}"))
            .with_help("put a backslash before a character that means itself, as in `\\\\(` within quotes")
    }

    /// Returns the type of a node; inserts conversions below it.
    pub(crate) fn check(&mut self, node: &mut IdedExpr) -> Result<Kind, ExpressionError> {
        if let Some(Source { element, shape, .. }) = self.tensor(node)? {
            return Ok(Kind::Tensor(element, shape));
        }
        // The node is taken apart, but errors still name it by its id.
        let here = IdedExpr { id: node.id, expr: Expr::Unspecified };
        match &mut node.expr {
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Ok(Kind::Bool),
                LiteralValue::Int(_) => Ok(Kind::Int),
                LiteralValue::Double(_) => Ok(Kind::Float),
                LiteralValue::String(_) => Ok(Kind::Text),
                LiteralValue::Null => Ok(Kind::Null),
                LiteralValue::UInt(_) => Err(self
                    .wrong(&here, "unsigned numbers are not available")
                    .with_help("leave out the `u`")),
                LiteralValue::Bytes(_) => {
                    Err(self.wrong(&here, "byte texts are not available").with_help("leave out the `b`"))
                }
            },
            Expr::Ident(name) => self.column(&here, name),
            Expr::List(list) => {
                let mut item: Option<Kind> = None;
                for element in &mut list.elements {
                    let kind = self.check(element)?;
                    if let Kind::Tensor(..) = kind {
                        let error = self.wrong(&here, format!("a list has plain values, found {kind}"));
                        return Err(self.advised(error, [element]));
                    }
                    item = Some(match item {
                        None => kind,
                        Some(before) if before == kind => kind,
                        Some(before) if before.is_number() && kind.is_number() => Kind::Float,
                        Some(before) => {
                            return Err(self.wrong(&here, format!("the list mixes {before} and {kind}")));
                        }
                    });
                }
                Ok(Kind::List(Box::new(item.unwrap_or(Kind::Null))))
            }
            Expr::Call(call) => self.call(&here, call),
            Expr::Select(select) => {
                let kind = self.check(&mut select.operand)?;
                Err(self
                    .wrong(&here, format!("a value of type {kind} has no fields, found `.{}`", select.field)))
            }
            Expr::Comprehension(_) => Err(self
                .wrong(&here, "`all`, `exists`, `map` and `filter` on lists are not available")
                .with_help("to look a value up in a list, write `site in ['north', 'south']`")),
            Expr::Map(_) | Expr::Struct(_) => Err(self.wrong(&here, "maps are not available in expressions")),
            Expr::Unspecified => Err(self.wrong(&here, "the expression is incomplete")),
        }
    }

    /// Adds what to write in place of a tensor that is one of these operands.
    fn advised<const N: usize>(
        &mut self,
        error: ExpressionError,
        operands: [&mut IdedExpr; N],
    ) -> ExpressionError {
        for operand in operands {
            if let Ok(Some(source)) = self.tensor(operand) {
                return error.with_help(tensors::advice(&source, self.text));
            }
        }
        error
    }

    fn column(&mut self, here: &IdedExpr, name: &str) -> Result<Kind, ExpressionError> {
        if let Some(derived) = self.derived.iter().find(|derived| derived.name == name) {
            return Ok(derived.kind.clone());
        }
        let Some(index) = self.input.index_of(name) else {
            let names = self.input.columns.iter().map(|c| c.name.as_str());
            let mut help = suggestion(name, names, "columns of the input");
            if let Some(constant) = common_mistakes::constant(name) {
                help = format!("did you mean `{constant}`?");
            } else if !help.starts_with("did you mean") {
                help.push_str(&format!("; write a text in quotes: `'{name}'`"));
            }
            let error = self.wrong(here, format!("there is no column `{name}`")).with_help(help);
            return Err(ExpressionError { mistake: Mistake::UnknownColumn, ..error });
        };
        let kind = match &self.input.columns[index].column_type {
            ColumnType::Text => Kind::Text,
            ColumnType::Int64 => Kind::Int,
            ColumnType::Float64 => Kind::Float,
            ColumnType::Bool => Kind::Bool,
            other => {
                return Err(self.wrong(here, format!("column `{name}` is of type {other}")).with_help(
                    "expressions work on columns of type text, int64, float64 and bool, and on tensors",
                ));
            }
        };
        self.used.insert(index);
        Ok(kind)
    }

    fn call(&mut self, here: &IdedExpr, call: &mut CallExpr) -> Result<Kind, ExpressionError> {
        let name = asked(&call.func_name).to_owned();
        if name == op::ADD
            && let [a, b] = call.args.as_mut_slice()
        {
            let kind = self.numbers_or_texts(here, &name, a, b)?;
            if kind == Kind::Text {
                call.func_name = text_length::JOIN.into();
            }
            return Ok(kind);
        }
        match (name.as_str(), call.args.as_mut_slice()) {
            (op::CONDITIONAL, [condition, yes, no]) => {
                let kind = self.check(condition)?;
                if kind != Kind::Bool {
                    return Err(self.wrong(here, format!("the condition of `?:` needs bool, found {kind}")));
                }
                let (a, b) = (self.check(yes)?, self.check(no)?);
                if matches!(a, Kind::Tensor(..)) || matches!(b, Kind::Tensor(..)) {
                    let error = self.wrong(here, format!("`?:` gives plain values, found {a} and {b}"));
                    return Err(self.advised(error, [yes, no]));
                }
                match (a, b) {
                    (a, b) if a == b => Ok(a),
                    (Kind::Null, b) => Ok(b),
                    (a, Kind::Null) => Ok(a),
                    (a, b) => self.meet(yes, a, no, b).map_err(|(a, b)| {
                        self.wrong(here, format!("both results of `?:` need one type, found {a} and {b}"))
                    }),
                }
            }
            (op::LOGICAL_AND | op::LOGICAL_OR, [a, b]) => {
                let kinds = (self.check(a)?, self.check(b)?);
                let sign = sign(&name);
                if kinds != (Kind::Bool, Kind::Bool) {
                    let message =
                        format!("`{sign}` needs bool on both sides, found {} and {}", kinds.0, kinds.1);
                    return Err(self.wrong(here, message));
                }
                Ok(Kind::Bool)
            }
            (op::LOGICAL_NOT, [a]) => match self.check(a)? {
                Kind::Bool => Ok(Kind::Bool),
                kind => Err(self.wrong(here, format!("`!` needs bool, found {kind}"))),
            },
            (op::NEGATE, [a]) => match self.check(a)? {
                kind if kind.is_number() => Ok(kind),
                kind => Err(self.wrong(here, format!("`-` needs a number, found {kind}"))),
            },
            (op::EQUALS | op::NOT_EQUALS, [a, b]) => {
                let (ka, kb) = (self.check(a)?, self.check(b)?);
                let is_tensor = matches!(ka, Kind::Tensor(..)) || matches!(kb, Kind::Tensor(..));
                if !is_tensor && (ka == Kind::Null || kb == Kind::Null) {
                    return Ok(Kind::Bool);
                }
                self.meet(a, ka, b, kb).map(|_| Kind::Bool).map_err(|(ka, kb)| {
                    let message =
                        format!("`{}` compares values of one type, found {ka} and {kb}", sign(&name));
                    let error = self.wrong(here, message);
                    self.advised(error, [a, b])
                })
            }
            (op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS, [a, b]) => {
                if self.numbers_or_texts(here, &name, a, b)? == Kind::Float
                    && let Some(computed) = float_order::computed(&name)
                {
                    call.func_name = computed.into();
                }
                Ok(Kind::Bool)
            }
            (op::SUBSTRACT | op::MULTIPLY | op::DIVIDE, [a, b]) => {
                let (ka, kb) = (self.check(a)?, self.check(b)?);
                if !ka.is_number() || !kb.is_number() {
                    let message = format!("`{}` needs two numbers, found {ka} and {kb}", sign(&name));
                    let error = self.wrong(here, message);
                    return Err(self.advised(error, [a, b]));
                }
                self.meet(a, ka, b, kb).map_err(|_| self.wrong(here, "numbers needed"))
            }
            (op::MODULO, [a, b]) => match (self.check(a)?, self.check(b)?) {
                (Kind::Int, Kind::Int) => Ok(Kind::Int),
                (ka, kb) => Err(self
                    .wrong(here, format!("`%` needs two whole numbers, found {ka} and {kb}"))
                    .with_help("convert with `int(x)`")),
            },
            (op::IN, [value, list]) => self.contained(here, value, list),
            _ => self.function(here, call),
        }
    }

    /// Brings two operands to one type, turning a whole number beside a float into a float.
    fn meet(&self, a: &mut IdedExpr, ka: Kind, b: &mut IdedExpr, kb: Kind) -> Result<Kind, (Kind, Kind)> {
        match (ka, kb) {
            (Kind::Int, Kind::Float) => {
                widen(a);
                Ok(Kind::Float)
            }
            (Kind::Float, Kind::Int) => {
                widen(b);
                Ok(Kind::Float)
            }
            (ka, kb) if ka == kb && !matches!(ka, Kind::List(_) | Kind::Tensor(..)) => Ok(ka),
            other => Err(other),
        }
    }

    fn numbers_or_texts(
        &mut self,
        here: &IdedExpr,
        name: &str,
        a: &mut IdedExpr,
        b: &mut IdedExpr,
    ) -> Result<Kind, ExpressionError> {
        let (ka, kb) = (self.check(a)?, self.check(b)?);
        if (ka == Kind::Text && kb == Kind::Text) || (ka.is_number() && kb.is_number()) {
            return self.meet(a, ka, b, kb).map_err(|_| self.wrong(here, "numbers or texts needed"));
        }
        let error =
            self.wrong(here, format!("`{}` needs two numbers or two texts, found {ka} and {kb}", sign(name)));
        if matches!(ka, Kind::Tensor(..)) || matches!(kb, Kind::Tensor(..)) {
            return Err(self.advised(error, [a, b]));
        }
        let one_text = ka == Kind::Text || kb == Kind::Text;
        let number = |expression: &IdedExpr| {
            let Expr::Literal(LiteralValue::String(text)) = &expression.expr else { return false };
            text.inner().parse::<f64>().is_ok()
        };
        Err(match one_text {
            true if name == op::ADD => error.with_help("turn the other side into text with `string(x)`"),
            true if number(a) || number(b) => error.with_help("write a number without quotes"),
            true => error.with_help(
                "compare a text with a text, `'20'`, or turn the text into a number with `double(x)`",
            ),
            false => error,
        })
    }

    fn contained(
        &mut self,
        here: &IdedExpr,
        value: &mut IdedExpr,
        list: &mut IdedExpr,
    ) -> Result<Kind, ExpressionError> {
        let kind = self.check(value)?;
        let listed = self.check(list)?;
        let Kind::List(item) = listed else {
            return Err(self
                .wrong(here, format!("`in` needs a list on its right, found {listed}"))
                .with_help(
                    "write `site in ['north', 'south']`; for a part of a text write `t.contains('x')`",
                ));
        };
        let float = kind == Kind::Float || *item == Kind::Float;
        if kind != *item && *item != Kind::Null && !(kind.is_number() && item.is_number()) {
            return Err(self.wrong(here, format!("`in` looks for {kind} in a list of {item}")));
        }
        if float && let Expr::List(list) = &mut list.expr {
            if kind == Kind::Int {
                widen(value);
            }
            for element in &mut list.elements {
                // Typed before; typing it once more is harmless and shows which ones are whole.
                if self.check(element)? == Kind::Int {
                    widen(element);
                }
            }
        }
        Ok(Kind::Bool)
    }

    fn function(&mut self, here: &IdedExpr, call: &mut CallExpr) -> Result<Kind, ExpressionError> {
        let mut name = asked(&call.func_name).to_owned();
        if name == "replace" {
            call.func_name = text_length::REPLACE.into();
        }
        let mut arguments: Vec<&mut IdedExpr> = Vec::new();
        if let Some(target) = &mut call.target {
            match &target.expr {
                Expr::Ident(space) if space == "math" => name = format!("math.{name}"),
                _ => arguments.push(target),
            }
        }
        let as_method = !arguments.is_empty();
        arguments.extend(call.args.iter_mut());
        if name == "math.abs" {
            return match arguments.as_mut_slice() {
                [x] => match self.check(x)? {
                    kind if kind.is_number() => Ok(kind),
                    kind => Err(self.wrong(here, format!("`math.abs` needs a number, found {kind}"))),
                },
                _ => Err(self.wrong(here, "`math.abs` needs one number")),
            };
        }
        let named: Vec<_> = FUNCTIONS.iter().filter(|(n, ..)| *n == name).collect();
        if named.is_empty() {
            if let Some((_, form)) = tensors::FUNCTIONS.iter().find(|(function, _)| *function == name) {
                return Err(self
                    .wrong(here, format!("`{name}` cannot be called as `x.{name}()`"))
                    .with_help(format!("write `{form}`")));
            }
            let of_tensors = tensors::FUNCTIONS.iter().map(|(function, _)| *function);
            let names: BTreeSet<&str> =
                FUNCTIONS.iter().map(|(n, ..)| *n).chain(["math.abs"]).chain(of_tensors).collect();
            let help =
                common_mistakes::function(&name).unwrap_or_else(|| suggestion(&name, names, "functions"));
            return Err(self.wrong(here, format!("there is no function `{name}`")).with_help(help));
        }
        let Some((_, wanted, result)) = named.iter().find(|(_, wanted, _)| wanted.len() == arguments.len())
        else {
            let count = named[0].1.len() - usize::from(as_method);
            let message = format!("`{name}` needs {count} argument{}", if count == 1 { "" } else { "s" });
            return Err(self.wrong(here, message));
        };
        // `size` can be written as function and as method, every other function in only one form.
        if name != "size" && is_method(&name) != as_method {
            let (wrong, right) = if as_method {
                (format!("x.{name}()"), format!("{name}(x)"))
            } else {
                (format!("{name}(x)"), format!("x.{name}()"))
            };
            return Err(self
                .wrong(here, format!("`{name}` cannot be called as `{wrong}`"))
                .with_help(format!("write `{right}`")));
        }
        let mut as_pattern = false;
        for (argument, wanted) in arguments.into_iter().zip(*wanted) {
            let kind = self.check(argument)?;
            let fits = match wanted {
                Argument::Text => kind == Kind::Text,
                Argument::Int => kind == Kind::Int,
                Argument::Float => kind.is_number(),
                Argument::Any => match name.as_str() {
                    "string" => matches!(kind, Kind::Int | Kind::Float | Kind::Bool | Kind::Text),
                    _ => matches!(kind, Kind::Int | Kind::Float | Kind::Text),
                },
            };
            if !fits {
                let wanted = match wanted {
                    Argument::Text => "text",
                    Argument::Int => "a whole number",
                    Argument::Float => "a number",
                    Argument::Any if name == "string" => "a number, bool or text",
                    Argument::Any => "a number or text",
                };
                let error = self.wrong(here, format!("`{name}` needs {wanted}, found {kind}"));
                return Err(self.advised(error, [argument]));
            }
            if *wanted == Argument::Float && kind == Kind::Int {
                widen(argument);
            }
            // The receiver is usually a column; a pattern is nearly always a literal.
            if name == "matches"
                && as_pattern
                && let Expr::Literal(LiteralValue::String(pattern)) = &argument.expr
                && let Err(error) = regex::Regex::new(pattern.inner())
            {
                return Err(self.wrong_pattern(here, pattern.inner(), &error));
            }
            as_pattern = true;
        }
        Ok(result.clone())
    }
}

/// Returns the function as written, if typing has replaced it.
fn asked(name: &str) -> &str {
    match name {
        text_length::REPLACE => "replace",
        text_length::JOIN => op::ADD,
        widening::WIDEN => "double",
        other => float_order::written(other).unwrap_or(other),
    }
}

/// Returns an operator as people write it.
fn sign(name: &str) -> &str {
    name.trim_matches('_')
}
