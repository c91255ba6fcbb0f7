"""Folders that only this user can change."""

import os
from pathlib import Path

import pytest

from rmsexp.system.files import private_folder


def test_a_folder_is_created_for_this_user_alone_and_refused_if_others_can_change_it(tmp_path: Path) -> None:
    for _ in range(2):
        assert private_folder(tmp_path / "new").stat().st_mode & 0o777 == 0o700
    for mode in (0o777, 0o720, 0o702):
        (tmp_path / "new").chmod(mode)
        with pytest.raises(PermissionError, match=r"other users can change .*/new: remove it"):
            private_folder(tmp_path / "new")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.lchown(tmp_path / "link", 12345, -1)
    with pytest.raises(PermissionError, match="other users can change"):
        private_folder(tmp_path / "link")
