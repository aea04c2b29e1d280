"""A run as a lesson: one page an iteration, with a question, its answer and the reasons. Reads events only."""

from batchlab.learn.lessons import LESSONS, Lesson
from batchlab.learn.pages import Entry, Page, pages_of
from batchlab.learn.predict import mark, read_prediction

__all__ = ["LESSONS", "Entry", "Lesson", "Page", "mark", "pages_of", "read_prediction"]
