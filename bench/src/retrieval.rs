//! Conversations that are generated to measure how well memory finds what it was told: a user's life told over many
//! turns, among what looks like it, and questions whose answers are known.

mod attributes;
mod chatter;
mod corpus;
mod dates;
mod dice;
mod fact;
mod noise;
mod people;
mod plan;
mod words;
