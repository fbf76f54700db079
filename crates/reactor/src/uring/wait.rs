//! Waiting for completions, and ending.
#![expect(unsafe_code, reason = "entering the kernel and lending it the bell's counter")]

use std::io;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, opcode};
use rustix::io::Errno;

use super::{Completed, OF_BELL, OF_CANCEL, Reactor};
use crate::slab::Slab;

/// How long the end of the reactor waits for the kernel to give memory back.
const PATIENCE: Duration = Duration::from_secs(5);

impl<M> Reactor<M> {
    /// Hands over what was queued, and returns when there is something to deliver.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        // Before the bell is armed: an earlier entry may have left behind that it rang, and nothing
        // wakes a reactor that falls asleep without it.
        self.collect();
        self.arm_bell();
        if self.has_news() {
            self.enter(0, None)?;
            self.collect();
            return Ok(());
        }
        if let Some(limit) = self.waiting.spin() {
            self.enter(0, None)?;
            if self.spin(limit) {
                self.waiting.spun_well();
                self.enter_for_deferred()?;
                self.collect();
                return Ok(());
            }
            self.waiting.spun_in_vain();
        }
        self.sleep()
    }

    /// Whether there is something that needs no completion.
    fn has_news(&mut self) -> bool {
        if self.letter.is_none() {
            self.letter = self.inbox.take();
        }
        !self.completed.is_empty()
            || self.letter.is_some()
            || self.timers.next().is_some_and(|at| at <= self.now)
    }

    /// Looks for news without sleeping. `false` if none came within `limit`.
    fn spin(&mut self, limit: Duration) -> bool {
        let begun = Instant::now();
        loop {
            // Looking at the clock costs more than looking at the ring.
            for _ in 0..16 {
                if self.ring.0.submission().taskrun() || !self.ring.0.completion().is_empty() {
                    return true;
                }
                core::hint::spin_loop();
            }
            self.tell_time();
            if self.has_news() {
                return true;
            }
            // Whom we wait for may want this very core. If somebody else wanted it, and for long,
            // spinning was in vain whatever came meanwhile: who sleeps gets the core back sooner.
            rustix::thread::sched_yield();
            if begun.elapsed() >= limit {
                return false;
            }
        }
    }

    fn sleep(&mut self) -> io::Result<()> {
        self.inbox.bell().going_to_sleep();
        if self.has_news() {
            self.inbox.bell().awake();
            return self.enter(0, None);
        }
        let begun = Instant::now();
        let until = self.timers.next().map(|at| at.since(self.now));
        let entered = self.enter(1, until);
        self.inbox.bell().awake();
        self.waiting.slept(begun.elapsed());
        self.collect();
        entered
    }

    /// Runs what the kernel deferred until we ask, if there is any.
    fn enter_for_deferred(&mut self) -> io::Result<()> {
        if self.ring.0.completion().is_empty() { self.enter(0, None) } else { Ok(()) }
    }

    fn enter(&mut self, want: u32, limit: Option<Duration>) -> io::Result<()> {
        let waiting = u32::try_from(self.ring.0.submission().len()).unwrap_or(u32::MAX);
        let flags = EnterFlags::GETEVENTS;
        let entered = match limit {
            Some(limit) => {
                let time = Timespec::from(limit);
                let args = SubmitArgs::new().timespec(&time);
                let want = usize::try_from(want).unwrap_or(1);
                self.ring.0.submitter().submit_with_args(want, &args)
            }
            // SAFETY: the queue holds `waiting` valid requests (see `push`), and there is no
            // argument to be wrong.
            None => unsafe {
                self.ring.0.submitter().enter::<libc::sigset_t>(waiting, want, flags.bits(), None)
            },
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // Time is up; a signal; the kernel waits for us to read completions.
                Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Moves completions from the ring to our own queue.
    pub(super) fn collect(&mut self) {
        for entry in self.ring.0.completion() {
            let (user_data, result, flags) = (entry.user_data(), entry.result(), entry.flags());
            match user_data {
                OF_CANCEL => {}
                OF_BELL => self.bell_is_armed = false,
                _ => self.completed.push_back(Completed { user_data, result, flags }),
            }
        }
    }

    /// Lends the receives new buffers, and begins those again that had run out of them.
    pub(super) fn feed_receives(&mut self) {
        if self.provided.refill(&self.receive_arena) {
            while let Some(key) = self.starved.pop() {
                self.begin(key);
            }
        }
    }

    fn arm_bell(&mut self) {
        if self.bell_is_armed {
            return;
        }
        self.bell_is_armed = true;
        let eventfd = Fd(std::os::fd::AsRawFd::as_raw_fd(self.inbox.bell().eventfd()));
        let counter = self.bell_counter.as_mut_ptr().cast::<u8>();
        self.push(&opcode::Read::new(eventfd, counter, 8).build().user_data(OF_BELL));
    }

    /// Ends everything under way and waits for it. Final events are not delivered any more.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        let everything = CancelBuilder::any();
        let request = opcode::AsyncCancel2::new(everything).build().user_data(OF_CANCEL);
        self.forget_what_the_kernel_never_saw();
        self.push(&request);
        let deadline = Instant::now() + PATIENCE;
        while !self.ops.is_empty() || self.bell_is_armed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.enter(1, Some(left))?;
            self.collect();
            self.bury_completed();
        }
        Ok(())
    }
}

impl<M> Drop for Reactor<M> {
    fn drop(&mut self) {
        if self.drain().is_err() {
            // The kernel may still write: better lost for good than somebody else's by then.
            Box::leak(Box::new((self.arena.clone(), self.receive_arena.clone())));
            Box::leak(Box::new(core::mem::replace(&mut self.ops, Slab::new(0))));
            Box::leak(core::mem::take(&mut self.bell_counter));
        }
    }
}
