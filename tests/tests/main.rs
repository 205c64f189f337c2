//! Rules that hold for the workspace as a whole: who may depend on whom, how long a file may be,
//! what must not stand in a committed file. One test program, one module a rule.

mod book_pages;
mod dependency_direction;
mod figures;
mod file_size;
mod images;
mod module_names;
mod repository;
mod repository_text;
mod scripts;
mod shipped_media;
