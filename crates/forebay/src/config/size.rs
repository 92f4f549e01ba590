//! Sizes as people write them: `4096`, `512M`, `4GiB`, `1.5G`, `25%`.
//!
//! `K`, `M`, `G`, `T` and the same with `iB` are powers of 1024; with `B` alone (`4GB`) they are
//! powers of 1000, as in coreutils. Case does not matter and a blank may stand before the unit.
//! Arithmetic is on integers, so that a size that is printed and read again is the same size.

use serde::{Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;

/// Digits after the point that are looked at; more are an error, not rounding.
const FRACTION_DIGITS_MAX: usize = 6;
/// A whole, in parts of [`Size::Share`].
pub const SHARE_WHOLE: u32 = 10_000;

/// A size, or a share of something that is known later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Hundredths of a percent, 1 to 10,000.
    Share(u32),
}

impl Size {
    /// The size in bytes, where `whole` is what shares are of.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(parts) => {
                let bytes = u128::from(whole) * u128::from(parts) / u128::from(SHARE_WHOLE);
                bytes as u64 // at most `whole`
            }
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let decimal = Decimal::parse(number).ok_or_else(usage)?;
        let unit = unit.trim().to_ascii_lowercase();
        if unit == "%" {
            let parts = decimal
                .times(u64::from(SHARE_WHOLE / 100))
                .ok_or_else(usage)?;
            let parts = u32::try_from(parts).unwrap_or(u32::MAX);
            return match parts {
                1..=SHARE_WHOLE => Ok(Self::Share(parts)),
                _ => Err("give a share above 0% and up to 100%".to_owned()),
            };
        }
        let bytes = decimal
            .times(unit_bytes(&unit).ok_or_else(usage)?)
            .ok_or_else(usage)?;
        Ok(Self::Bytes(bytes))
    }
}

impl fmt::Display for Size {
    /// The shortest form that means exactly this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match *self {
            Self::Bytes(bytes) => bytes,
            Self::Share(parts) if parts % 100 == 0 => return write!(f, "{}%", parts / 100),
            Self::Share(parts) => return write!(f, "{}.{:02}%", parts / 100, parts % 100),
        };
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if bytes > 0 && bytes.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", bytes >> shift);
            }
        }
        write!(f, "{bytes}")
    }
}

/// How a size stands in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Bytes(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Size {
    /// An integer of bytes, or a text.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Form::deserialize(deserializer).map_err(|_| serde::de::Error::custom(usage()))? {
            Form::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A size that may also be "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<Size>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().eq_ignore_ascii_case("none") {
            return Ok(Self(None));
        }
        let size = text.parse().map_err(|usage| format!("{usage}, or none"))?;
        Ok(Self(Some(size)))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(size) => size.fmt(f),
            None => write!(f, "none"),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Form::deserialize(deserializer).map_err(|_| serde::de::Error::custom(usage()))? {
            Form::Bytes(bytes) => Ok(Self(Some(Size::Bytes(bytes)))),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A number with up to six digits after the point.
pub(super) struct Decimal {
    /// The number times 10^`digits`.
    value: u128,
    digits: u32,
}

impl Decimal {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !plain(whole) || !plain(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
            return None;
        }
        let digits = fraction.len() as u32;
        let whole = u128::from(whole.parse::<u64>().ok()?);
        let value = whole * 10u128.pow(digits) + fraction.parse::<u128>().ok()?;
        Some(Self { value, digits })
    }

    /// The product with a unit, rounded down; `None` when it does not fit.
    pub(super) fn times(&self, unit: u64) -> Option<u64> {
        let product = self.value.checked_mul(u128::from(unit))? / 10u128.pow(self.digits);
        u64::try_from(product).ok()
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let (letter, base) = match unit.strip_suffix("ib") {
        Some(letter) => (letter, 1024u64),
        None => match unit.strip_suffix('b') {
            Some(letter) => (letter, 1000),
            None => (unit, 1024),
        },
    };
    let power = match letter {
        "" if unit != "ib" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return None,
    };
    Some(base.pow(power))
}

fn usage() -> String {
    "write a size such as 4096, 512M, 4GiB or 25%".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_people_write_them() {
        let table = [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("512MiB", 512 << 20),
            ("4GiB", 4 << 30),
            ("4 gib", 4 << 30),
            ("4GB", 4_000_000_000),
            ("1.5k", 1536),
            ("7B", 7),
            (" 2T ", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in table {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("25%".parse(), Ok(Size::Share(2500)));
        assert_eq!("0.5 %".parse(), Ok(Size::Share(50)));
        assert_eq!("25%".parse::<Size>().unwrap().of(8 << 30), 2 << 30);
    }

    #[test]
    fn what_no_size_is() {
        for text in [
            "",
            "M",
            "-1",
            "1e3",
            "1..5",
            ".5",
            "5.",
            "1.5.5",
            "4XB",
            "4iB",
            "0%",
            "101%",
            "99999999T",
            "1.1234567K",
            "18446744073709551616",
            "٣",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_and_read_again(bytes: u64, shift in 0u32..64) {
            for bytes in [bytes, bytes >> shift << shift, bytes << shift] {
                let size = Size::Bytes(bytes);
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }

        #[test]
        fn shares_printed_and_read_again(parts in 1u32..=SHARE_WHOLE, whole: u64) {
            let size = Size::Share(parts);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            prop_assert!(size.of(whole) <= whole);
        }

        #[test]
        fn any_text_is_a_size_or_an_error(text in ".*") {
            let _ = text.parse::<Size>();
        }

        #[test]
        fn numbers_with_units(number in 0u64..1 << 20, unit in "[kmgt](ib)?") {
            let shift = match unit.as_bytes()[0] { b'k' => 10, b'm' => 20, b'g' => 30, _ => 40 };
            prop_assert_eq!(format!("{number}{unit}").parse(), Ok(Size::Bytes(number << shift)));
        }
    }
}
