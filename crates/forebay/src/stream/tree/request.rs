//! What a request does to the tree: a hit of the current stream, or a merge with all streams that it touches.

use super::index::Damaged;
use super::{Extent, Locked, Merged, Span, extent_of};
use crate::ids::StreamId;
use crate::memory::streams::Stream;
use crate::sync::Ordering::Relaxed;

/// A stream, if there is one.
type Found<'a> = Option<(StreamId, &'a Stream)>;

/// Requests.
impl<'a> Locked<'a> {
    /// Learns that blocks have headers now, or, with `dirty`, that they owe something. Their stream becomes the current one.
    pub fn track(&self, span: Span, dirty: bool) {
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        if self.hits(span, dirty) {
            return;
        }
        match self.merge_in(span, dirty) {
            Ok(Some(id)) => self.become_current(id),
            Ok(None) | Err(Damaged) => self.doubt(),
        }
    }

    /// A request that begins in the current stream, or where it ends, and leaves it below its limit.
    fn hits(&self, span: Span, dirty: bool) -> bool {
        let Some((id, stream)) = self.current() else {
            return false;
        };
        let extent = extent_of(stream);
        let end = extent.span.end.max(span.end);
        let grows = end > extent.span.end;
        if span.start < extent.span.start
            || span.start > extent.span.end
            || grows && end >= stream.upper_limit.load(Relaxed)
        {
            return false;
        }
        let dirty = match (dirty, extent.dirty) {
            (false, was) => was,
            (true, None) => Some(span),
            (true, Some(was)) if was.touches(span) => Some(was.hull(span)),
            (true, Some(_)) => return false,
        };
        let span = Span { end, ..extent.span };
        self.save(id, stream, Extent { span, dirty });
        true
    }

    /// Merges a request with all streams that it touches. The stream that has the request's end; `None`: there was no free one.
    fn merge_in(&self, span: Span, dirty: bool) -> Result<Option<StreamId>, Damaged> {
        let mut now = Extent {
            span,
            dirty: dirty.then_some(span),
        };
        // The stream whose record `now` will be kept in.
        let mut own = None;
        let (below, above) = self.index().around(span.start)?;
        let (below, above) = (self.both(below), self.both(above));
        if let Some((id, stream)) = below {
            let extent = extent_of(stream);
            if extent.has(now) {
                return Ok(Some(id));
            }
            if !extent.span.touches(span) {
                lower_limit(stream, span.start);
            } else {
                match extent.merge(now) {
                    Merged::One(one) => (now, own) = (one, Some((id, stream))),
                    Merged::Two(low, high) if low.dirty == now.dirty => {
                        return self.split_below(id, stream, low, high);
                    }
                    Merged::Two(low, high) => match self.take(high.span.start) {
                        Some(new) => {
                            self.save(id, stream, low);
                            stream.upper_limit.store(high.span.start, Relaxed);
                            self.put_in(new, high)?;
                            (now, own) = (high, Some(new));
                        }
                        None => (now, own) = (extent.squeeze(now), Some((id, stream))),
                    },
                }
            }
        }
        self.sweep_up(span, now, own, (below, above))
    }

    /// The request lies below the dirty range of the stream that it is in: the record goes on with the upper part.
    fn split_below(
        &self,
        id: StreamId,
        stream: &'a Stream,
        low: Extent,
        high: Extent,
    ) -> Result<Option<StreamId>, Damaged> {
        let Some(new) = self.take(low.span.start) else {
            self.save(id, stream, low.squeeze(high));
            return Ok(Some(id));
        };
        // No other stream lies between the old key and the new one.
        self.save(id, stream, high);
        self.put_in(new, low)?;
        new.1.upper_limit.store(high.span.start, Relaxed);
        Ok(Some(new.0))
    }

    /// Takes in what lies above, as long as it touches.
    fn sweep_up(
        &self,
        span: Span,
        mut now: Extent,
        mut own: Option<(StreamId, &'a Stream)>,
        (below, mut above): (Found<'a>, Found<'a>),
    ) -> Result<Option<StreamId>, Damaged> {
        let mut with_end = None;
        while let Some((id, stream)) = above {
            let extent = extent_of(stream);
            if extent.span.start > now.span.end {
                break;
            }
            match now.merge(extent) {
                Merged::Two(low, high) if own.is_some() || self.take_for(&mut own, low)? => {
                    if let Some((lower_id, lower)) = own {
                        self.save(lower_id, lower, low);
                        lower.upper_limit.store(high.span.start, Relaxed);
                        if low.span.contains(span.end - 1) {
                            with_end = Some(lower_id);
                        }
                    }
                    self.save(id, stream, high);
                    if high.span.end == extent.span.end {
                        // It ends where it did: what follows was beside it before.
                        return Ok(with_end.or(Some(id)));
                    }
                    (now, own) = (high, Some((id, stream)));
                }
                one => {
                    now = match one {
                        Merged::One(one) => one,
                        Merged::Two(low, high) => low.squeeze(high),
                    };
                    if own.is_some() {
                        self.give_up(id, stream)?;
                    } else {
                        own = Some((id, stream));
                        self.save(id, stream, now);
                    }
                }
            }
            above = self.both(self.next_above(now.span.start)?);
        }
        if own.is_none() && !self.take_for(&mut own, now)? {
            // Rather too wide than not at all.
            let Some((id, stream)) = nearest(span, below, above) else {
                return Ok(None);
            };
            self.save(id, stream, extent_of(stream).squeeze(now));
            return Ok(Some(id));
        }
        let Some((id, stream)) = own else {
            return Ok(None);
        };
        self.save(id, stream, now);
        let limit = above.map_or(u32::MAX, |(_, next)| next.start.load(Relaxed));
        stream.upper_limit.store(limit, Relaxed);
        Ok(with_end.or(Some(id)))
    }

    pub(super) fn both(&self, id: Option<StreamId>) -> Option<(StreamId, &'a Stream)> {
        id.and_then(|id| Some((id, self.get(id)?)))
    }

    /// A record for an extent that has none, in the tree. `false`: there is no free one.
    fn take_for(
        &self,
        own: &mut Option<(StreamId, &'a Stream)>,
        extent: Extent,
    ) -> Result<bool, Damaged> {
        *own = self.take(extent.span.start);
        if let Some(new) = *own {
            self.put_in(new, extent)?;
        }
        Ok(own.is_some())
    }
}

/// The nearer of the streams on both sides of a range, if there is one.
fn nearest<'a>(span: Span, below: Found<'a>, above: Found<'a>) -> Found<'a> {
    let gap = |low: u32, high: u32| high.saturating_sub(low);
    let under = |&(_, stream): &(StreamId, &Stream)| gap(stream.end.load(Relaxed), span.start);
    let over = |&(_, stream): &(StreamId, &Stream)| gap(span.end, stream.start.load(Relaxed));
    match (below, above) {
        (Some(below), Some(above)) if over(&above) < under(&below) => Some(above),
        (below, above) => below.or(above),
    }
}

fn lower_limit(stream: &Stream, limit: u32) {
    if stream.upper_limit.load(Relaxed) > limit {
        stream.upper_limit.store(limit, Relaxed);
    }
}
