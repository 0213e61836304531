//! Sizes as people write them: `8GiB`, `512 MiB`, `1000000`.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, de};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size: write a whole number and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")]
pub struct InvalidSize(String);

impl FromStr for Size {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        let fail = || InvalidSize(text.chars().take(40).collect());
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: u64 = number.parse().map_err(|_| fail())?;
        let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(fail()),
        };
        number.checked_mul(unit).map(Self).ok_or_else(fail)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(bits, _)| self.0 >= 1 << bits && self.0.is_multiple_of(1 << bits)) {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Bytes(u64),
            Text(String),
        }
        match Raw::deserialize(d)
            .map_err(|_| de::Error::custom("a size is a number of bytes or a text like \"8GiB\""))?
        {
            Raw::Bytes(bytes) => Ok(Self(bytes)),
            Raw::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("8GiB", 8 << 30), ("512 MiB", 512 << 20), ("7", 7), ("1kb", 1000), ("2TiB", 2 << 40)]
        {
            assert_eq!(text.parse::<Size>().unwrap().0, bytes, "{text}");
        }
        for bad in ["", "GiB", "-1", "8 gibs", "99999999999TiB", "1.5GiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!(Size(8 << 30).to_string(), "8GiB");
        assert_eq!(Size(1000).to_string(), "1000B");
    }
}
