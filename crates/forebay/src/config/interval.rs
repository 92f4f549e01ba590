//! Durations as people write them: `500ms`, `1s`, `2.5m`, `1h`, and `never`.
//!
//! A number without a unit is refused: seconds and milliseconds are both plausible.

use super::size::Decimal;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Units in nanoseconds, the largest first.
const UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// A duration, or `None` for "never".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(pub Option<Duration>);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("never") {
            return Ok(Self(None));
        }
        let split = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(usage)?;
        let (number, unit) = text.split_at(split);
        let unit = unit.trim();
        let (_, nanoseconds) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(usage)?;
        let decimal = Decimal::parse(number).ok_or_else(usage)?;
        let total = decimal.times(*nanoseconds).ok_or_else(usage)?;
        Ok(Self(Some(Duration::from_nanos(total))))
    }
}

impl fmt::Display for Interval {
    /// The shortest form that means exactly this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(duration) = self.0 else {
            return write!(f, "never");
        };
        let total = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if total == 0 {
            return write!(f, "0s");
        }
        let whole = UNITS.iter().find(|(_, unit)| total % unit == 0);
        let (name, unit) = whole.unwrap_or(&("ns", 1));
        write!(f, "{}{name}", total / unit)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text =
            String::deserialize(deserializer).map_err(|_| serde::de::Error::custom(usage()))?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn usage() -> String {
    "write a duration such as 500ms, 1s, 2m, or never".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_people_write_them() {
        let table = [
            ("1s", 1_000_000_000),
            ("500ms", 500_000_000),
            ("2.5m", 150_000_000_000),
            ("1 h", 3_600_000_000_000),
            ("7us", 7_000),
            ("0s", 0),
        ];
        for (text, nanoseconds) in table {
            let expected = Interval(Some(Duration::from_nanos(nanoseconds)));
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!("Never".parse(), Ok(Interval(None)));
        for text in ["", "5", "s", "-1s", "1S", "1 day", "99999999999h"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_and_read_again(nanoseconds: u64) {
            let interval = Interval(Some(Duration::from_nanos(nanoseconds)));
            prop_assert_eq!(interval.to_string().parse(), Ok(interval));
        }
    }
}
