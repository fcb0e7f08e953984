// SPDX-License-Identifier: Apache-2.0
//! The hold that faults have on one running watch.

use tokio::sync::watch;

/// How a watch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cut {
    /// The stream ends as at its timeout, without an error.
    Clean,
    /// The connection breaks in the middle of an event.
    MidLine,
    /// The connection breaks between two events.
    Reset,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    paused: bool,
    /// After how many events, and how.
    cut: Option<(usize, Cut)>,
}

/// The watch's end: asked before every event.
#[derive(Debug)]
pub(crate) struct Control {
    wishes: watch::Receiver<Wish>,
    own: watch::Sender<Wish>,
}

/// The fault's end.
#[derive(Clone, Debug)]
pub(crate) struct Lever(watch::Sender<Wish>);

pub(crate) fn pair() -> (Lever, Control) {
    let (sender, wishes) = watch::channel(Wish::default());
    (Lever(sender.clone()), Control { wishes, own: sender })
}

impl Lever {
    pub(crate) fn pause(&self, paused: bool) {
        self.0.send_modify(|wish| wish.paused = paused);
    }

    /// Cuts the watch once it has sent this many events.
    pub(crate) fn cut(&self, after: usize, how: Cut) {
        self.0.send_modify(|wish| wish.cut = Some((after, how)));
    }

    /// True if nobody reads the watch any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.0.receiver_count() == 0
    }
}

impl Control {
    pub(crate) fn is_paused(&self) -> bool {
        self.wishes.borrow().paused
    }

    pub(crate) fn cut_after(&self, sent: usize) -> Option<Cut> {
        self.wishes
            .borrow()
            .cut
            .filter(|(after, _)| sent >= *after)
            .map(|(_, how)| how)
    }

    /// How many events may be sent in all.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.wishes.borrow().cut.map(|(after, _)| after)
    }

    /// The connection breaks next.
    pub(crate) fn reset_next(&self) {
        self.own.send_modify(|wish| wish.cut = Some((0, Cut::Reset)));
    }

    pub(crate) async fn changed(&mut self) {
        if self.wishes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
