"""Questions to people about the texts of each task: two axes from 1 to 5, and which of two is better.

The axes are those of RL4LMs' templates where it has any (Ramamurthy et al. 2023). Whetstone adds axes for
translation (adequacy and fluency, as in evaluations of machine translation), for questions on stories and
for users' tasks. All wording is its own.
"""

from dataclasses import dataclass

from contracts.errors import InputError, did_you_mean
from services.tasks import TASKS


@dataclass(frozen=True, slots=True)
class Axis:
    """Scale from 1 to 5; its name is the column of the answers.

    Example: `Axis("fluency", "How well is it written?", "not language", "flawless")`
    """

    name: str
    question: str
    lowest: str
    highest: str


@dataclass(frozen=True, slots=True)
class Questions:
    """Words of a page: names for prompt and text, and the questions."""

    prompt: str
    text: str
    axes: tuple[Axis, Axis]
    better: str
    examples: tuple[tuple[str, str, str], ...]  # prompt, one model's text, another model's text


def _fluency(of: str) -> Axis:
    return Axis(
        "fluency",
        f"Fluency: is the {of} grammatical, and does it read well?",
        "can't be understood",
        "flawless",
    )


REVIEW = Questions(
    prompt="The review begins",
    text="It goes on",
    axes=(
        Axis(
            "coherence",
            "Coherence: does it go on from the beginning, and is it well written?",
            "has nothing to do with it",
            "as one review",
        ),
        Axis(
            "sentiment",
            "Sentiment: what does the whole review say about the film?",
            "very negative",
            "very positive",
        ),
    ),
    better="Which continuation makes the better and more positive review?",
    examples=(
        (
            "I had never heard of the director before, and",
            "I left the cinema wanting to see everything else she has made.",
            "the film the film is a film that I did not like.",
        ),
        (
            "The first half hour promises little, but then",
            "the story finds its feet and never lets go again.",
            "it is a good good film, very good.",
        ),
    ),
)
CONCEPTS = Questions(
    prompt="The words",
    text="The sentence made of them",
    axes=(
        _fluency("sentence"),
        Axis(
            "commonsense",
            "Common sense: could what it describes happen in everyday life?",
            "impossible",
            "entirely plausible",
        ),
    ),
    better="Which sentence is better: well written, sensible, and with all the words in it?",
    examples=(
        (
            "dog frisbee catch",
            "The dog jumps up to catch the frisbee.",
            "A frisbee catches a dog with a frisbee.",
        ),
        (
            "bread cut table",
            "She cuts the bread on the kitchen table.",
            "The bread is cutting the table.",
        ),
    ),
)
SUMMARY = Questions(
    prompt="The article",
    text="The summary",
    axes=(
        Axis(
            "coherence",
            "Coherence: do its sentences read well and belong together?",
            "a heap of words",
            "a well-made whole",
        ),
        Axis(
            "quality",
            "Quality: does it say what matters in the article, and nothing that is not in it?",
            "useless or wrong",
            "excellent",
        ),
    ),
    better="Which is the better summary of the article?",
    examples=(
        (
            "The town council voted on Tuesday to close the old bridge for repairs. Work begins in May and "
            "is to last six months. Buses will take the northern road until then.",
            "The old bridge closes in May for six months of repairs; buses take the northern road.",
            "The council closed a bus on Tuesday.",
        ),
        (
            "A rare owl has been seen in the harbour for the third day. Watchers from across the country "
            "have come, and the harbour master asks them to keep off the pier.",
            "A rare owl draws watchers to the harbour, who are asked to keep off the pier.",
            "An owl has come. An owl has come to the harbour. Watchers have come.",
        ),
    ),
)
TABLE = Questions(
    prompt="The table, with its highlighted cells",
    text="The sentence about them",
    axes=(
        _fluency("sentence"),
        Axis(
            "correctness",
            "Correctness: does it say what the highlighted cells say, and no more?",
            "wrong or about nothing",
            "exact",
        ),
    ),
    better="Which sentence says better what the highlighted cells say?",
    examples=(
        (
            "Season results | Year: 1987 | Competition: National Cup | Position: 2nd",
            "In 1987 the team came second in the National Cup.",
            "The team won the 1987 National Cup.",
        ),
        (
            "List of bridges | Name: Long Bridge | Opened: 1911 | Length: 402 m",
            "Long Bridge, opened in 1911, is 402 metres long.",
            "It is a bridge with a length.",
        ),
    ),
)
STORY = Questions(
    prompt="The question and the story",
    text="The answer",
    axes=(
        Axis(
            "correctness",
            "Correctness: does it answer the question as the story does?",
            "wrong",
            "right and complete",
        ),
        _fluency("answer"),
    ),
    better="Which is the better answer to the question?",
    examples=(
        (
            "Where does Anna hide the letter? Anna folded the letter, slid it under the clock, and left.",
            "Under the clock.",
            "She hides in a letter.",
        ),
        (
            "Why does the boat turn back? The wind rose at noon, and by one the captain had seen enough and "
            "turned for home.",
            "Because the wind had become too strong.",
            "It was one o'clock.",
        ),
    ),
)
TRANSLATION = Questions(
    prompt="The source",
    text="The translation",
    axes=(
        Axis(
            "adequacy",
            "Adequacy: how much of the source's meaning is in the translation?",
            "nothing of it",
            "all of it, and no more",
        ),
        _fluency("translation"),
    ),
    better="Which is the better translation?",
    examples=(
        (
            "translate English to German: The train leaves in ten minutes.",
            "Der Zug fährt in zehn Minuten ab.",
            "Der Zug verlässt zehn Minuten.",
        ),
        (
            "translate English to German: I have never seen so many stars.",
            "Ich habe noch nie so viele Sterne gesehen.",
            "Ich sehe nie viele Stern.",
        ),
    ),
)
DIALOGUE = Questions(
    prompt="The conversation so far",
    text="What is said next",
    axes=(
        _fluency("reply"),
        Axis(
            "quality",
            "Quality: does it follow from what was said, and move the conversation on?",
            "makes no sense here",
            "just what one would say",
        ),
    ),
    better="Which is the better reply?",
    examples=(
        (
            "Have you been waiting long?\nHalf an hour. I was about to leave.",
            "I am so sorry, my bus broke down.",
            "Yes, I am long.",
        ),
        (
            "What would you like to drink?",
            "A pot of tea, please, and some water.",
            "I like what you would.",
        ),
    ),
)
GENERAL = Questions(
    prompt="The prompt",
    text="What was written",
    axes=(
        _fluency("text"),
        Axis(
            "quality",
            "Quality: is it a good answer to the prompt?",
            "useless",
            "could not be better",
        ),
    ),
    better="Which text is the better answer to the prompt?",
    examples=(
        ("Name a fruit.", "An apple.", "Fruit fruit."),
        ("Say good night.", "Good night, and sleep well!", "Day good."),
    ),
)

QUESTIONS: dict[str, Questions] = {
    **dict.fromkeys(TASKS, GENERAL),
    "imdb": REVIEW,
    "imdb_seq2seq": REVIEW,
    "commongen": CONCEPTS,
    "cnn_daily_mail": SUMMARY,
    "xsum": SUMMARY,
    "totto": TABLE,
    "narrative_qa": STORY,
    "wmt16": TRANSLATION,
    "wmt14_en_de": TRANSLATION,
    "wmt16_newsonly": TRANSLATION,
    "iwslt2017_en_de": TRANSLATION,
    "crd3": DIALOGUE,
    "daily_dialog": DIALOGUE,
}


def questions_for(task: str) -> Questions:
    """Return the questions about a task's texts.

    >>> [axis.name for axis in questions_for("commongen").axes]
    ['fluency', 'commonsense']

    Raises:
        InputError: there is no such task.
    """
    if task not in QUESTIONS:
        raise InputError(
            f"--task {task}: no such task{did_you_mean(task, QUESTIONS)}\n"
            "For a task of your own take prompts: fluency and quality."
        )
    return QUESTIONS[task]
