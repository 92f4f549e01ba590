//! Ranges of blocks, and what becomes of two streams that touch: the arithmetic of the tree, without the tree.

/// Blocks from `start` up to `end`, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First block.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl Span {
    /// A range. `None`: it would be empty.
    pub fn new(start: u32, end: u32) -> Option<Self> {
        (start < end).then_some(Span { start, end })
    }

    /// One block.
    pub fn block(block: u32) -> Self {
        // The last index there is belongs to no file (`FILE_BYTES_MAX`).
        let start = block.min(u32::MAX - 1);
        Span {
            start,
            end: start + 1,
        }
    }

    /// Whether a block is in it.
    pub fn contains(&self, block: u32) -> bool {
        (self.start..self.end).contains(&block)
    }

    /// Whether all of another range is in it.
    pub fn covers(&self, other: Span) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the two have a block in common or lie side by side.
    pub fn touches(&self, other: Span) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The least range that has both.
    pub fn hull(&self, other: Span) -> Span {
        Span {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }
}

/// What a stream covers: its blocks, and which of them may be owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The address range.
    pub span: Span,
    /// The dirty range, within the address range.
    pub dirty: Option<Span>,
}

/// What becomes of two streams that touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// One stream.
    One(Extent),
    /// Two, side by side, each with one dirty range: the lower and the upper.
    Two(Extent, Extent),
}

impl Extent {
    /// Merges two extents that touch (StreamCache 4.1): ranges are united, unless the dirty ranges do not touch. Then the
    /// address range is split where the upper dirty range begins, so that the lower stream, which
    /// grows upwards, keeps the clean blocks in between. Two that lie side by side stay as they are.
    pub fn merge(self, other: Extent) -> Merged {
        let span = self.span.hull(other.span);
        let (a, b) = match (self.dirty, other.dirty) {
            (Some(a), Some(b)) if !a.touches(b) => (a, b),
            (a, b) => {
                let dirty = match (a, b) {
                    (Some(a), Some(b)) => Some(a.hull(b)),
                    (a, b) => a.or(b),
                };
                return Merged::One(Extent { span, dirty });
            }
        };
        let (lower, upper) = if a.start < b.start { (a, b) } else { (b, a) };
        let above = self.span.start.max(other.span.start);
        let side_by_side = self.span.end.min(other.span.end) == above;
        let at = if side_by_side { above } else { upper.start };
        let part = |start, end, dirty| Extent {
            span: Span { start, end },
            dirty: Some(dirty),
        };
        Merged::Two(part(span.start, at, lower), part(at, span.end, upper))
    }

    /// Whether what another covers is covered, and dirty where it is.
    pub fn has(self, other: Extent) -> bool {
        let dirty = other
            .dirty
            .is_none_or(|other| self.dirty.is_some_and(|own| own.covers(other)));
        self.span.covers(other.span) && dirty
    }

    /// Both as one, whatever lies between: for want of a free stream. What was not dirty may be in the dirty range then.
    pub fn squeeze(self, other: Extent) -> Extent {
        let dirty = match (self.dirty, other.dirty) {
            (Some(a), Some(b)) => Some(a.hull(b)),
            (a, b) => a.or(b),
        };
        Extent {
            span: self.span.hull(other.span),
            dirty,
        }
    }
}
