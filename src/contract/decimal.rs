//! Exact decimal values of JSON numbers, without arithmetic on what a hostile text could blow up.
//!
//! A number is its significant digits and the power of ten of the last one. `1`, `1.0` and `10e-1`
//! are one value; 2^53 and 2^53+1 are two, which 64-bit floats would make one. Nothing is allocated,
//! whatever the exponent is.
//!
//! Limit: exponents of more than 18 digits are compared as they are written, so two spellings of such
//! a number can count as different.

/// A JSON number's value.
#[derive(Clone, Copy)]
pub(super) struct Decimal<'a> {
    is_negative: bool,
    whole: &'a str,
    fraction: &'a str,
    leading: usize,
    /// How many significant digits there are; none is zero.
    count: usize,
    exponent: Exponent<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Exponent<'a> {
    /// The power of ten of the last significant digit.
    Exact(i64),
    /// An exponent beyond 18 digits: its sign, its digits, and what the digits' place adds.
    Huge(bool, &'a str, i64),
}

impl<'a> Decimal<'a> {
    /// Takes a number's text, which must be a JSON number.
    pub(super) fn of(text: &'a str) -> Self {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let zeros =
            |digits: &mut dyn Iterator<Item = u8>| digits.take_while(|b| *b == b'0').count();
        let length = whole.len().saturating_add(fraction.len());
        let leading = zeros(&mut whole.bytes().chain(fraction.bytes()));
        if leading == length {
            let exponent = Exponent::Exact(0);
            return Self { is_negative: false, whole, fraction, leading, count: 0, exponent };
        }
        let trailing = zeros(&mut fraction.bytes().rev().chain(whole.bytes().rev()));
        let count = length.saturating_sub(leading).saturating_sub(trailing);
        let place = to_i64(trailing).saturating_sub(to_i64(fraction.len()));
        let (is_down, power) = match power.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, power.strip_prefix('+').unwrap_or(power)),
        };
        let power = power.trim_start_matches('0');
        let exponent = match power.len() {
            0 => Exponent::Exact(place),
            1..=18 => {
                let size: i64 = power.parse().unwrap_or(0);
                let power = if is_down { size.saturating_neg() } else { size };
                Exponent::Exact(power.saturating_add(place))
            }
            _ => Exponent::Huge(is_down, power, place),
        };
        Self { is_negative, whole, fraction, leading, count, exponent }
    }

    /// The whole part of the value times 10 to the power of `shift`, towards zero, if it lies in
    /// `0..=max`. A value below zero has none, however small it is.
    pub(super) fn whole_part(self, shift: i64, max: i64) -> Option<i64> {
        if self.count == 0 {
            return Some(0);
        }
        let last = match self.exponent {
            Exponent::Exact(power) => power.saturating_add(shift),
            Exponent::Huge(true, ..) => i64::MIN,
            Exponent::Huge(false, ..) => i64::MAX,
        };
        if self.is_negative {
            return None;
        }
        // Digits before the decimal point; 18 of them fit, and more exceed any `max`.
        let wanted = last.saturating_add(to_i64(self.count));
        if wanted > 18 {
            return None;
        }
        let mut value: i64 = 0;
        let mut digits = self.digits();
        for _ in 0..wanted.max(0) {
            let digit = digits.next().map_or(0, |byte| i64::from(byte.wrapping_sub(b'0')));
            value = value.checked_mul(10)?.checked_add(digit)?;
        }
        (value <= max).then_some(value)
    }

    fn digits(self) -> impl Iterator<Item = u8> + 'a {
        let all = self.whole.bytes().chain(self.fraction.bytes());
        all.skip(self.leading).take(self.count)
    }
}

impl PartialEq for Decimal<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.is_negative == other.is_negative
            && self.count == other.count
            && self.exponent == other.exponent
            && self.digits().eq(other.digits())
    }
}

fn to_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
