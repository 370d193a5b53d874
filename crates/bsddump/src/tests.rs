//! What is written is read back, by Cairn and by Linux `restore`; what Linux `dump` writes is read;
//! damage costs the file that it is in.

mod damage;
mod linux;
mod model;
mod round_trip;
mod structures;
mod volumes;
