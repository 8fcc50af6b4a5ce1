"""The table of built-in graders: name to class. A user's own is `package.module:Class`, or `FILE.py:NAME`.

A reward scores each text, a metric a split of texts. Most graders are both.
"""

HERE = __name__

# Both a reward, by `score`, and a metric, by `compute`.
BOTH = {
    "bert_score": f"{HERE}.bert_score:BertScore",
    "bleu": f"{HERE}.bleu:Bleu",
    "bleurt": f"{HERE}.bleurt:Bleurt",
    "chrf": f"{HERE}.chrf:Chrf",
    "cider": f"{HERE}.cider:Cider",
    "cider_rl4lms_compat": f"{HERE}.cider_rl4lms_compat:CiderRl4lmsCompat",
    "coverage": f"{HERE}.coverage:Coverage",
    "dates": f"{HERE}.dates:Dates",
    "distinct_n": f"{HERE}.distinct_n:DistinctN",
    "exact_match": f"{HERE}.exact_match:ExactMatch",
    "increasing_numbers": f"{HERE}.increasing_numbers:IncreasingNumbers",
    "intent_accuracy": f"{HERE}.intent_accuracy:IntentAccuracy",
    "learned_reward": f"{HERE}.learned_reward:LearnedReward",
    "length": f"{HERE}.length:Length",
    "meteor": f"{HERE}.meteor:Meteor",
    "meteor_rl4lms_compat": f"{HERE}.meteor_rl4lms_compat:MeteorRl4lmsCompat",
    "rouge": f"{HERE}.rouge:Rouge",
    "rouge_l_max": f"{HERE}.rouge_l_max:RougeLMax",
    "rouge_rl4lms_compat": f"{HERE}.rouge_rl4lms_compat:RougeRl4lmsCompat",
    "sacre_bleu": f"{HERE}.sacre_bleu:SacreBleu",
    "sentiment": f"{HERE}.sentiment:Sentiment",
    "spice": f"{HERE}.spice:Spice",
    "ter": f"{HERE}.ter:Ter",
    "tfidf_diversity": f"{HERE}.tfidf_diversity:TfidfDiversity",
}
ONLY_REWARDS = {
    "code_tests": f"{HERE}.code_tests:CodeTests",
    "common_gen_repeat_penalty": f"{HERE}.common_gen_repeat_penalty:CommonGenRepeatPenalty",
    "format": f"{HERE}.format:Format",
    "function": f"{HERE}.function:Function",
    "judge": f"{HERE}.judge:Judge",
    "judge_group": f"{HERE}.judge_group:JudgeGroup",
    "math": f"{HERE}.math:Math",
    "overlong": f"{HERE}.overlong:Overlong",
    "parent": f"{HERE}.parent:Parent",
    "preference_model": f"{HERE}.preference_model:PreferenceModel",
    "reasoning_gym": f"{HERE}.reasoning_gym:ReasoningGym",
    "repetition": f"{HERE}.repetition:Repetition",
    "rouge_combined": f"{HERE}.rouge_combined:RougeCombined",
    "short_answer": f"{HERE}.short_answer:ShortAnswer",
    "spider": f"{HERE}.spider:Spider",
    "summac_zs": f"{HERE}.summac_zs:SummacZs",
}
ONLY_METRICS = {
    "bleu_totto": f"{HERE}.bleu_totto:BleuTotto",
    "diversity": f"{HERE}.diversity:Diversity",
    "parent_totto": f"{HERE}.parent:ParentTotto",
    "perplexity": f"{HERE}.perplexity:Perplexity",
    "summaCConv": f"{HERE}.summac_conv:SummacConv",
    "summaCZS": f"{HERE}.summac_zs:SummacZs",
}
# Metrics whose options differ from those of the reward.
OF_SPLITS = {"cider": f"{HERE}.cider:CiderOfSplit", "spice": f"{HERE}.spice:SpiceOfSplit"}

REWARDS: dict[str, str] = dict(sorted((BOTH | ONLY_REWARDS).items()))
METRICS: dict[str, str] = dict(sorted((BOTH | ONLY_METRICS | OF_SPLITS).items()))
