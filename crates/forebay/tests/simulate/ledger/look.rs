//! Whether what somebody has found can be, and what follows from it.

use super::{Interval, Ledger, NEVER, Version, Window};

impl Ledger {
    /// Whether a read of `wanted` bytes may have brought these.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_read(
        &mut self,
        window: Window,
        offset: u64,
        wanted: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let end = offset + bytes.len() as u64;
        let (least, most) = (window.shortest, window.longest);
        let is_short = (bytes.len() as u64) < wanted;
        if is_short && least > end {
            return Err(format!(
                "it ends at {end}, and the file at {least} at least"
            ));
        }
        if !bytes.is_empty() && end > most {
            return Err(format!("it goes to {end}, and the file to {most} at most"));
        }
        self.check_bytes(window, offset, bytes, true)
    }

    /// Whether the file may have been so long.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_length(&self, window: Window, len: u64) -> Result<(), String> {
        let (least, most) = (window.shortest, window.longest);
        if (least..=most).contains(&len) {
            return Ok(());
        }
        Err(format!("it is {len} bytes long, not {least} to {most}"))
    }

    /// Whether the device may look like this after a sync.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_synced(&mut self, window: Window, device: &[u8]) -> Result<(), String> {
        self.check_length(window, device.len() as u64)?;
        self.check_bytes(window, 0, device, false)?;
        if self
            .durable
            .is_some_and(|durable| durable.begun < window.begun)
        {
            self.durable = Some(window);
            self.forget(0, NEVER);
        }
        Ok(())
    }

    /// Whether the power may have left this.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_power_loss(&mut self, device: &[u8]) -> Result<(), String> {
        let window = self.durable.expect("power fails here");
        self.check_length(window, device.len() as u64)?;
        self.check_bytes(window, 0, device, false)
    }

    fn check_bytes(
        &mut self,
        window: Window,
        offset: u64,
        bytes: &[u8],
        observed: bool,
    ) -> Result<(), String> {
        let end = (offset + bytes.len() as u64).min(window.known_below);
        let mut at = offset;
        while at < end {
            let (&start, here) = self.intervals.range(..=at).next_back().expect("zero");
            let stop = here.end.min(end);
            debug_assert!(start <= at && at < stop);
            let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
            let seen = Self::seen(here, window.begun, at, part, &mut self.scratch)?;
            let decides = observed && here.versions.len() > 1;
            if let (Some(seen), true) = (seen, decides) {
                self.observe(window, at, stop, seen);
            }
            at = stop;
        }
        Ok(())
    }

    /// The version that bytes are, if they are all of one.
    fn seen(
        here: &Interval,
        begun: u64,
        at: u64,
        bytes: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<Option<u64>, String> {
        let allowed: Vec<&Version> = here.versions.iter().filter(|v| v.gone > begun).collect();
        let mut whole = allowed.iter().filter(|v| v.value.is(at, bytes, scratch));
        if let Some(version) = whole.next() {
            // Few bytes may be those of several.
            return Ok(whole.next().is_none().then_some(version.id));
        }
        drop(whole);
        let mut explained = vec![false; bytes.len()];
        let mut copy = vec![0; bytes.len()];
        for version in &allowed {
            version.value.copy_to(at, &mut copy);
            for (ok, (a, b)) in explained.iter_mut().zip(copy.iter().zip(bytes)) {
                *ok |= a == b;
            }
        }
        let Some(wrong) = explained.iter().position(|ok| !ok) else {
            return Ok(None);
        };
        let place = at + wrong as u64;
        let found = &bytes[wrong..bytes.len().min(wrong + 8)];
        let origin = here
            .versions
            .iter()
            .find(|v| v.value.is(place, found, scratch));
        let origin = origin.map_or("nobody's".into(), |v| {
            let Version {
                begun, ended, gone, ..
            } = v;
            let ended = if *ended == NEVER { 0 } else { *ended };
            format!(
                "{} (begun {begun}, ended {ended}, gone {gone})",
                v.value.describe()
            )
        });
        let could: Vec<String> = allowed.iter().map(|v| v.value.describe()).collect();
        Err(format!(
            "byte {place} and on is {found:02x?}, {origin}; could be {could:?} for who begins at {begun}"
        ))
    }

    /// A reader has seen a version in a range: those that had ended before it began, and what that one was put over, are
    /// gone.
    fn observe(&mut self, window: Window, start: u64, end: u64, seen: u64) {
        let now = self.clock;
        self.split(start);
        self.split(end);
        for (_, here) in self.intervals.range_mut(start..end) {
            let of_seen = here.versions.iter().find(|version| version.id == seen);
            let Some(began) = of_seen.map(|version| version.begun) else {
                continue;
            };
            for other in here.versions.iter_mut().filter(|v| v.id != seen) {
                if other.ended < window.begun || other.ended < began {
                    other.gone = other.gone.min(now);
                }
            }
        }
        self.forget(start, end);
    }
}
