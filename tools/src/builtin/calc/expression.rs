//! A recursive descent parser that computes as it goes. Whole numbers stay exact as long as they fit into 127 bits.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = unary (("*" | "/" | "%") unary)*
//! unary   = ("-" | "+") unary | power
//! power   = atom ("^" unary)?                  right to left: 2^3^2 = 2^9, and -2^2 = -4
//! atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
//! ```
use std::{fmt, iter::Peekable, str::CharIndices};

use serde_json::{Value, json};

/// Sums and signs inside of each other; bounds the stack. A pair of parentheses takes two: 64 pairs.
const DEPTH: usize = 128;
/// Arguments of one function.
const ARGUMENTS: usize = 1000;

/// A result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    /// Exact.
    Whole(i128),
    /// Everything else, always finite.
    Float(f64),
}

use Number::{Float, Whole};

/// What is wrong, and where: characters from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    position: usize,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expression, character {}: {}", self.position, self.what)
    }
}

impl Number {
    /// Whole numbers of up to 64 bits as integers, all others as floats.
    pub(super) fn to_json(self) -> Value {
        match self {
            Whole(n) => match (i64::try_from(n), u64::try_from(n)) {
                (Ok(small), _) => json!(small),
                (_, Ok(large)) => json!(large),
                _ => json!(self.float()),
            },
            Float(x) => json!(x),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "called where an exact result is not possible")]
    fn float(self) -> f64 {
        match self {
            Whole(n) => n as f64,
            Float(x) => x,
        }
    }

    fn is_zero(self) -> bool {
        self.float() == 0.0
    }

    /// A float that is a whole number and small enough to be exact is one.
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and below 2^53")]
    fn settled(self) -> Self {
        match self {
            Float(x) if x.fract() == 0.0 && x.abs() < 9.0e15 => Whole(x as i128),
            other => other,
        }
    }
}

/// Computes the expression.
pub(super) fn evaluate(text: &str) -> Result<Number, Fault> {
    let mut parser = Parser { text, chars: text.char_indices().peekable(), depth: 0 };
    let number = parser.sum()?;
    match parser.peek() {
        None => Ok(number.settled()),
        Some(c) => Err(parser.fault(format!("unexpected `{c}`"))),
    }
}

struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    depth: usize,
}

type Parsed = Result<Number, Fault>;

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        self.chars.peek().map(|(_, c)| *c)
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.chars.next();
        }
        found
    }

    fn offset(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(i, _)| *i)
    }

    fn fault(&mut self, what: impl Into<String>) -> Fault {
        let offset = self.offset();
        let position = self.text.get(..offset).unwrap_or_default().chars().count() + 1;
        Fault { position, what: what.into() }
    }

    /// The end of an operation: anything but a finite number is a fault.
    fn finite(&mut self, number: Number) -> Parsed {
        if number.float().is_finite() {
            Ok(number)
        } else {
            Err(self.fault("the result is not a finite number"))
        }
    }

    fn sum(&mut self) -> Parsed {
        self.deeper(|p| {
            let mut left = p.product()?;
            loop {
                if p.take('+') {
                    let right = p.product()?;
                    left = p.apply(left, right, i128::checked_add, |a, b| a + b)?;
                } else if p.take('-') {
                    let right = p.product()?;
                    left = p.apply(left, right, i128::checked_sub, |a, b| a - b)?;
                } else {
                    return Ok(left);
                }
            }
        })
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.unary()?;
        loop {
            if self.take('*') {
                let right = self.unary()?;
                left = self.apply(left, right, i128::checked_mul, |a, b| a * b)?;
            } else if let Some(sign) = ['/', '%'].into_iter().find(|sign| self.take(*sign)) {
                let right = self.unary()?;
                if right.is_zero() {
                    return Err(self.fault("division by zero"));
                }
                let exact = |a: i128, b: i128| if a.checked_rem(b)? == 0 { a.checked_div(b) } else { None };
                left = match sign {
                    '/' => self.apply(left, right, exact, |a, b| a / b)?,
                    _ => self.apply(left, right, i128::checked_rem, |a, b| a % b)?,
                };
            } else {
                return Ok(left);
            }
        }
    }

    fn apply(
        &mut self,
        left: Number,
        right: Number,
        whole: fn(i128, i128) -> Option<i128>,
        float: fn(f64, f64) -> f64,
    ) -> Parsed {
        let exact = match (left, right) {
            (Whole(a), Whole(b)) => whole(a, b),
            _ => None,
        };
        self.finite(exact.map_or_else(|| Float(float(left.float(), right.float())), Whole))
    }

    fn unary(&mut self) -> Parsed {
        self.deeper(|p| {
            if p.take('-') {
                let number = p.unary()?;
                return Ok(match number {
                    Whole(n) => n.checked_neg().map_or(Float(-number.float()), Whole),
                    Float(x) => Float(-x),
                });
            }
            if p.take('+') { p.unary() } else { p.power() }
        })
    }

    fn power(&mut self) -> Parsed {
        let base = self.atom()?;
        if !self.take('^') {
            return Ok(base);
        }
        let exponent = self.unary()?;
        let exact = match (base, exponent) {
            (Whole(b), Whole(e)) => u32::try_from(e).ok().and_then(|e| b.checked_pow(e)),
            _ => None,
        };
        self.finite(exact.map_or_else(|| Float(base.float().powf(exponent.float())), Whole))
    }

    fn atom(&mut self) -> Parsed {
        match self.peek() {
            Some('(') => {
                self.take('(');
                let number = self.sum()?;
                if self.take(')') { Ok(number) } else { Err(self.fault("`)` is missing")) }
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_alphabetic() => self.name(),
            Some(c) => Err(self.fault(format!("expected a number, got `{c}`"))),
            None => Err(self.fault("expected a number, got the end")),
        }
    }

    fn number(&mut self) -> Parsed {
        let start = self.offset();
        let digit =
            |p: &mut Self| p.chars.next_if(|(_, c)| c.is_ascii_digit() || matches!(c, '.' | '_')).is_some();
        while digit(self) {}
        if self.chars.next_if(|(_, c)| matches!(c, 'e' | 'E')).is_some() {
            self.chars.next_if(|(_, c)| matches!(c, '+' | '-'));
            while digit(self) {}
        }
        let end = self.offset();
        let text = self.text.get(start..end).unwrap_or_default().replace('_', "");
        if let Ok(whole) = text.parse::<i128>() {
            return Ok(Whole(whole));
        }
        match text.parse::<f64>() {
            Ok(x) if x.is_finite() => Ok(Float(x)),
            _ => Err(self.fault(format!("`{}` is not a number", text.chars().take(40).collect::<String>()))),
        }
    }

    fn name(&mut self) -> Parsed {
        let start = self.offset();
        while self.chars.next_if(|(_, c)| c.is_alphanumeric() || *c == '_').is_some() {}
        let end = self.offset();
        let name = self.text.get(start..end).unwrap_or_default().to_lowercase();
        if !self.take('(') {
            return match name.as_str() {
                "pi" => Ok(Float(std::f64::consts::PI)),
                "e" => Ok(Float(std::f64::consts::E)),
                _ => Err(self.fault(format!("unknown name `{}`", name.chars().take(40).collect::<String>()))),
            };
        }
        let mut arguments = Vec::new();
        if !self.take(')') {
            loop {
                if arguments.len() >= ARGUMENTS {
                    return Err(self.fault(format!("more than {ARGUMENTS} arguments")));
                }
                arguments.push(self.sum()?);
                if self.take(')') {
                    break;
                }
                if !self.take(',') {
                    return Err(self.fault("expected `,` or `)`"));
                }
            }
        }
        self.function(&name, &arguments)
    }

    fn function(&mut self, name: &str, arguments: &[Number]) -> Parsed {
        let number = match (name, arguments) {
            ("min", [_, ..]) => pick(arguments, |a, b| a < b),
            ("max", [_, ..]) => pick(arguments, |a, b| a > b),
            ("sum", [_, ..]) => self.total(arguments)?,
            ("avg" | "mean", [_, ..]) => {
                let total = self.total(arguments)?;
                let count = Whole(i128::try_from(arguments.len()).unwrap_or(i128::MAX));
                let exact = |a: i128, b: i128| if a % b == 0 { Some(a / b) } else { None };
                self.apply(total, count, exact, |a, b| a / b)?
            }
            ("round", [x, digits]) => round_to(*x, *digits),
            ("abs", [Whole(n)]) => Whole(n.saturating_abs()),
            ("round" | "floor" | "ceil", [Whole(n)]) => Whole(*n),
            (_, [x]) => match one(name, x.float()) {
                Some(value) if value.is_nan() => {
                    return Err(self.fault(format!("{name} is not defined there")));
                }
                Some(value) => Float(value),
                None => return Err(self.unknown(name)),
            },
            ("min" | "max" | "sum" | "avg" | "mean", []) => {
                return Err(self.fault(format!("{name} needs an argument")));
            }
            _ if one(name, 1.0).is_some() => {
                return Err(self.fault(format!("{name} takes one argument, got {}", arguments.len())));
            }
            _ => return Err(self.unknown(name)),
        };
        self.finite(number.settled())
    }

    fn unknown(&mut self, name: &str) -> Fault {
        let name: String = name.chars().take(40).collect();
        self.fault(format!(
            "unknown function `{name}`; known are sqrt abs round floor ceil min max sum avg ln log10 sin cos tan"
        ))
    }

    fn total(&mut self, numbers: &[Number]) -> Parsed {
        numbers.iter().try_fold(Whole(0), |sum, n| self.apply(sum, *n, i128::checked_add, |a, b| a + b))
    }

    fn deeper(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        if self.depth >= DEPTH {
            return Err(self.fault("nested too deep"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }
}

fn one(name: &str, x: f64) -> Option<f64> {
    Some(match name {
        "sqrt" => x.sqrt(),
        "abs" => x.abs(),
        "round" => x.round(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "ln" => x.ln(),
        "log10" => x.log10(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        _ => return None,
    })
}

fn pick(numbers: &[Number], better: fn(f64, f64) -> bool) -> Number {
    let mut best = numbers.first().copied().unwrap_or(Whole(0));
    for n in numbers {
        if better(n.float(), best.float()) {
            best = *n;
        }
    }
    best
}

fn round_to(x: Number, digits: Number) -> Number {
    let factor = 10f64.powf(digits.float().clamp(0.0, 15.0).round());
    match x {
        Whole(n) => Whole(n),
        Float(x) => Float((x * factor).round() / factor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &str) -> Value {
        evaluate(text).unwrap_or_else(|e| panic!("{text}: {e}")).to_json()
    }

    #[test]
    fn arithmetic() {
        for (text, expected) in [
            ("1 + 2 * 3", json!(7)),
            ("(1 + 2) * 3", json!(9)),
            ("-2^2", json!(-4)),
            ("2^3^2", json!(512)),
            ("2^-1", json!(0.5)),
            ("7 / 2", json!(3.5)),
            ("6 / 2", json!(3)),
            ("-7 % 3", json!(-1)),
            ("--3", json!(3)),
            ("1.5e3 + .5", json!(1500.5)),
            ("1_000 * 3", json!(3000)),
            ("0.1 + 0.2", json!(0.1 + 0.2)),
            ("9007199254740993 * 1", json!(9007199254740993i64)),
            ("2^64 - 1", json!(u64::MAX)),
            ("2^63 - 1", json!(i64::MAX)),
            ("sqrt(16) + abs(-3) + round(2.5) + floor(2.9) + ceil(2.1)", json!(4 + 3 + 3 + 2 + 3)),
            ("min(3, 1, 2) + max(3, 1, 2) + sum(1, 2, 3) + avg(1, 2, 3)", json!(1 + 3 + 6 + 2)),
            ("round(2.34567, 2)", json!(2.35)),
            ("log10(1000) + ln(e) + sin(0) + cos(0)", json!(5)),
            ("2 * pi", json!(std::f64::consts::TAU)),
        ] {
            assert_eq!(result(text), expected, "{text}");
        }
    }

    #[test]
    fn faults_name_the_character() {
        for (text, fault) in [
            ("1 +", "character 4: expected a number, got the end"),
            ("2 * (3 + 4", "character 11: `)` is missing"),
            ("1 / 0", "character 6: division by zero"),
            ("5 % (2 - 2)", "division by zero"),
            ("1 2", "character 3: unexpected `2`"),
            ("ä", "unknown name"),
            ("foo(1)", "unknown function `foo`"),
            ("sqrt(1, 2)", "sqrt takes one argument"),
            ("sqrt(-1)", "not defined"),
            ("max()", "needs an argument"),
            ("1e999", "not a number"),
            ("10^400", "not a finite number"),
            ("1.2.3", "not a number"),
            ("", "character 1"),
        ] {
            let got = evaluate(text).unwrap_err().to_string();
            assert!(got.contains(fault), "{text}: {got}");
        }
    }

    #[test]
    fn deep_nesting_is_a_fault_not_a_crash() {
        for deep in ["(".repeat(4000), "-".repeat(4000), "2^".repeat(2000), "abs(".repeat(1000)] {
            assert!(evaluate(&deep).unwrap_err().to_string().contains("nested"), "{}", &deep[..8]);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-z+*/%^(),. -]{0,60}") {
            let _ = evaluate(&text);
        }
    }
}
