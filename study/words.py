"""A task of words for SmolLM2: who is who in a family (family_relationships of reasoning_gym).

    python scalerl.py --task study/words.py --task-options '{}' ...
"""
import reasoning_gym

source = reasoning_gym.create_dataset("family_relationships", size=2000, seed=1)
problems = [{"question": entry["question"], "gold": entry["answer"]} for entry in source]


def reward(problem, answer_text):
    """1.0 if the text's last word is the relation, else 0.0."""
    words = answer_text.lower().replace(".", " ").split()
    return float(bool(words) and words[-1].strip("\"'*,!") == problem["gold"].lower())
