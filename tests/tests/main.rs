//! Rules for the whole workspace: allowed dependencies, length of files, forbidden content of committed files. One test
//! program, one module per rule.

mod book_pages;
mod dependency_direction;
mod features_of_builds;
mod figures;
mod file_size;
mod fixed_sleeps;
mod ignored_tests;
mod images;
mod kind_names;
mod module_names;
mod repository;
mod repository_text;
mod scripts;
mod shipped_media;
mod wheel;
