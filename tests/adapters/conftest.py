"""The fail matrix is tried by `dev.py test --adapters` only."""


def pytest_ignore_collect(collection_path, config):
    if collection_path.name == "test_matrix.py" and not config.option.adapters:
        return True
    return None
