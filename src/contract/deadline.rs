//! Deadlines: until when a follow-up can be made (standards 5.4).
//!
//! A time is RFC 3339 text with a zone, or a number of milliseconds or seconds since 1970. Anything
//! else, a local time or a bare date included, names no time: a wrong deadline is worse than none.

use super::decimal::Decimal;
use super::json::{Kind, Value};
use super::operation::TimeUnit;

/// The latest deadline, in milliseconds since 1970: the last millisecond of the year 9999.
pub const MAX_DEADLINE_MS: i64 = 253_402_300_799_999;

/// Whether a follow-up can no longer be made; at the deadline itself it cannot.
pub fn is_passed(deadline_ms: Option<i64>, now_ms: i64) -> bool {
    deadline_ms.is_some_and(|deadline_ms| now_ms >= deadline_ms)
}

/// A time in milliseconds since 1970, as a deadline's `at` names it (standards 5.4).
///
/// Fractions of a millisecond are cut off. `None` for anything that is no time in this unit, for
/// times before 1970, and for those after [`MAX_DEADLINE_MS`].
pub fn time_ms(value: Value<'_>, unit: TimeUnit) -> Option<i64> {
    let number = |shift| Decimal::of(value.as_number()?).whole_part(shift, MAX_DEADLINE_MS);
    match (unit, value.kind()) {
        (TimeUnit::Either | TimeUnit::Milliseconds, Kind::Number) => number(0),
        (TimeUnit::Seconds, Kind::Number) => number(3),
        (TimeUnit::Either | TimeUnit::Iso8601, Kind::String) => rfc3339_ms(&value.as_str()?),
        (
            TimeUnit::Either | TimeUnit::Iso8601 | TimeUnit::Milliseconds | TimeUnit::Seconds,
            Kind::Array | Kind::Bool | Kind::Null | Kind::Number | Kind::Object | Kind::String,
        ) => None,
    }
}

/// Reads an RFC 3339 date-time with a zone: no local times, no bare dates, no other separator than
/// `T`. The 60th second of a leap second is the next minute's first.
fn rfc3339_ms(text: &str) -> Option<i64> {
    let mut reader = Digits { bytes: text.as_bytes() };
    let year = reader.number(4)?;
    reader.one_of(b"-")?;
    let month = reader.number(2)?;
    reader.one_of(b"-")?;
    let day = reader.number(2)?;
    reader.one_of(b"Tt")?;
    let hour = reader.number(2)?;
    reader.one_of(b":")?;
    let minute = reader.number(2)?;
    reader.one_of(b":")?;
    let second = reader.number(2)?;
    let millisecond = if reader.one_of(b".").is_some() { reader.fraction_ms()? } else { 0 };
    let zone_minutes = match reader.one_of(b"Zz+-")? {
        sign @ (b'+' | b'-') => {
            let hours = reader.number(2)?;
            reader.one_of(b":")?;
            let minutes = reader.number(2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours.saturating_mul(60).saturating_add(minutes);
            if sign == b'-' { offset.saturating_neg() } else { offset }
        }
        _ => 0,
    };
    if !reader.bytes.is_empty() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let narrow = |number: i64| i8::try_from(number).ok();
    let date = jiff::civil::Date::new(i16::try_from(year).ok()?, narrow(month)?, narrow(day)?);
    let midnight = jiff::tz::Offset::UTC.to_timestamp(date.ok()?.at(0, 0, 0, 0)).ok()?.as_second();
    let minutes = hour.saturating_mul(60).saturating_add(minute).saturating_sub(zone_minutes);
    let seconds = midnight.saturating_add(minutes.saturating_mul(60)).saturating_add(second);
    let ms = seconds.saturating_mul(1000).saturating_add(millisecond);
    (0..=MAX_DEADLINE_MS).contains(&ms).then_some(ms)
}

struct Digits<'t> {
    bytes: &'t [u8],
}

impl Digits<'_> {
    /// Exactly so many digits.
    fn number(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// One of these bytes.
    fn one_of(&mut self, wanted: &[u8]) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        if !wanted.contains(first) {
            return None;
        }
        self.bytes = rest;
        Some(*first)
    }

    /// One or more digits after the point, as whole milliseconds.
    fn fraction_ms(&mut self) -> Option<i64> {
        let mut ms = 0_i64;
        let mut count = 0_usize;
        while let Some(digit) = self.one_of(b"0123456789") {
            if count < 3 {
                ms = ms.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0')));
            }
            count = count.saturating_add(1);
        }
        match count {
            0 => None,
            1 => Some(ms.saturating_mul(100)),
            2 => Some(ms.saturating_mul(10)),
            _ => Some(ms),
        }
    }
}
