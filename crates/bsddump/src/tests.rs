//! Cairn and Linux `restore` read the written dumps, Cairn reads those of Linux `dump`, and damage
//! only affects the file that it is in.

mod damage;
mod linux;
mod model;
mod round_trip;
mod structures;
mod volumes;
