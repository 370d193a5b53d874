//! Work of the server: jobs, the threads that do them, their priority, and turns.

pub(crate) mod aside;
pub(crate) mod background;
pub(crate) mod jobs;
pub(crate) mod programs;
pub(crate) mod rounds;
pub(crate) mod threads;
pub(crate) mod turns;
