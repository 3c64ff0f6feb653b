//! Every CUDA kernel and its binding on the CPU: the sources are built by g++ against `tests/emu/emu.hpp`,
//! the calls are those that the binding makes, and the result must be that of the host device within the
//! class's rounding.
//!
//! Needs g++; without it each test says so and is counted as skipped in its output.
mod case;
mod emulator;

mod argmax;
mod attend;
mod conv;
mod delta;
mod embed;
mod experts;
mod fold;
mod linear;
mod norm;
mod rope;
mod route;
mod synth;
mod weights;
