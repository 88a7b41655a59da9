"""forms.py: a table of grade.py in the forms that other systems read."""
import datetime
import os


def words(row):
    """What a student may read about an exercise."""
    return "\n".join([f"{part['part']}: {part['why']}" for part in row["parts"] if part["why"]]
                     + row["notes"])


def gradescope(told):
    """Gradescope's results.json. An elective adds to the score and not to what it is of."""
    return dict(score=told["points"], output="\n".join(told["notes"]), tests=[
        dict(number=str(row["number"]), name=row["title"] + " (elective)" * row["elective"],
             score=row["points"], max_score=row["of"], output=words(row))
        for row in told["exercises"]])


def classroom50(told):
    """result.json of Classroom 50 (classroom50/result/v1), named by the environment of its runner.
    All electives are part of `max-score`, since a score may not be above it."""
    names = {name: os.environ.get(name.upper(), "") for name in ("classroom", "assignment")}
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "schema": "classroom50/result/v1", **names,
        "assignment_type": os.environ.get("ASSIGNMENT_TYPE") or "individual",
        "owner": os.environ.get("OWNER") or os.environ.get("USERNAME", ""),
        "submission": os.environ.get("SUBMISSION_TAG", ""),
        "commit": os.environ.get("COMMIT_URL", ""), "release": os.environ.get("RELEASE_URL", ""),
        "review": os.environ.get("REVIEW_URL") or os.environ.get("COMMIT_URL", ""),
        "datetime": now, "score": told["points"],
        "max-score": sum(row["of"] for row in told["exercises"]),
        "tests": [{"test-name": f"{row['number']} {row['title']}", "score": row["points"],
                   "max-score": row["of"], "passed": row["points"] == row["of"],
                   "output": words(row)} for row in told["exercises"]]}


FORMS = {"gradescope": gradescope, "classroom50": classroom50}
