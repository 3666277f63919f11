import tracemalloc

import pytest

from finetune_operator.reconcile.run_folder_files import FileCache

URI = "gs://team-a-runs/support-bot/attempts/train-{}/result.json"


@pytest.mark.parametrize("content", [b"", b'{"attempt": 1, "seconds": 1.5}' * 20])
def test_the_size_is_no_less_than_what_the_files_take_in_memory(content: bytes) -> None:
    cache = FileCache(2**30)
    tracemalloc.start()
    for number in range(200):
        cache.keep(f"job-{number % 20}", URI.format(number), content)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= cache.size < 1.5 * taken


def test_a_file_that_is_replaced_or_forgotten_no_longer_counts() -> None:
    cache = FileCache(2**20)
    cache.keep("job", URI.format(1), b"first")
    cache.keep("job", URI.format(1), b"second, and longer")
    cache.keep("job", URI.format(2), b"other")
    assert cache.get("job", URI.format(1)) == b"second, and longer"
    cache.forget("job")
    assert (cache.size, len(cache._jobs)) == (0, 0)


def test_the_least_recently_used_job_makes_room() -> None:
    cache = FileCache(1_200)
    for number in range(1, 6):
        cache.keep(f"job-{number}", URI.format(number), b"content")
        cache.get("job-1", URI.format(1))
    cache.keep("job-6", URI.format(6), b"content")
    assert cache.size <= 1_200
    assert cache.get("job-1", URI.format(1)) == b"content"
    assert cache.get("job-2", URI.format(2)) is None
