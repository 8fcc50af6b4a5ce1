"""The tasks, by name. One file each: its settings class is the task."""

TASKS: dict[str, str] = {
    "increasing_numbers": "services.tasks.increasing_numbers:IncreasingNumbers",
    "dates": "services.tasks.dates:Dates",
    "dummy": "services.tasks.dummy:Dummy",
    "imdb": "services.tasks.imdb:Imdb",
    "imdb_seq2seq": "services.tasks.imdb_seq2seq:ImdbSeq2Seq",
    "commongen": "services.tasks.commongen:CommonGen",
    "cnn_daily_mail": "services.tasks.cnn_daily_mail:CnnDailyMail",
    "xsum": "services.tasks.xsum:Xsum",
    "totto": "services.tasks.totto:Totto",
    "narrative_qa": "services.tasks.narrative_qa:NarrativeQa",
    "wmt16": "services.tasks.wmt16:Wmt16",
    "wmt14_en_de": "services.tasks.wmt14_en_de:Wmt14EnDe",
    "wmt16_newsonly": "services.tasks.wmt16_newsonly:Wmt16NewsOnly",
    "iwslt2017_en_de": "services.tasks.iwslt2017_en_de:Iwslt2017EnDe",
    "crd3": "services.tasks.crd3:Crd3",
    "daily_dialog": "services.tasks.daily_dialog:DailyDialog",
    "episodes": "services.tasks.episodes:Episodes",
    "prompts": "services.tasks.prompts:Prompts",
    "textworld": "services.tasks.textworld:TextWorld",
}
