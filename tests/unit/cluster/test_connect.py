from pathlib import Path

import pytest

from finetune_operator.cluster.connect import NoCredentials, ServiceAccountFolder, user_context

ENVIRON = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def folder(tmp_path: Path) -> ServiceAccountFolder:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("a certificate")
    (tmp_path / "namespace").write_text("finetune-system\n")
    return ServiceAccountFolder(tmp_path)


async def test_a_pods_identity_is_read_from_its_folder(folder: ServiceAccountFolder) -> None:
    configuration = folder.configuration(ENVIRON)
    assert configuration.host == "https://127.0.0.1:6443"
    assert configuration.ssl_ca_cert == str(folder.ca)
    assert (await configuration.auth_settings())["BearerToken"]["value"].split() == ["bearer", "first"]
    assert folder.namespace() == "finetune-system"


def test_the_token_is_the_one_of_now(folder: ServiceAccountFolder) -> None:
    assert folder.token() == "first"
    (folder.path / "token").write_text("second")
    assert folder.token() == "second"


def test_outside_a_pod_it_is_said_what_is_missing_and_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match="Run in a pod, or set FINETUNE_SERVICEACCOUNT_DIR"):
        ServiceAccountFolder(tmp_path).configuration(ENVIRON)
    with pytest.raises(NoCredentials, match="namespace cannot be read"):
        ServiceAccountFolder(tmp_path).namespace()


def test_without_the_api_servers_address_it_is_said_too(folder: ServiceAccountFolder) -> None:
    with pytest.raises(NoCredentials, match="KUBERNETES_SERVICE_HOST"):
        folder.configuration({})


async def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match=str(tmp_path / "none")):
        await user_context(str(tmp_path / "none"))
