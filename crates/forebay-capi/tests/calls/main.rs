//! The C functions, called as C calls them: by the reference model in this process and through a C program, by programs that are built
//! with the compilers that are here, over forks, and with arguments that make no sense.

mod built;
mod forks;
mod misuse;
mod model;
mod own;
mod pools;
mod programs;
mod remote;
mod stores;
mod views;
mod windows;
