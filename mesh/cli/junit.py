"""Reports in the form that CI servers read, JUnit's: suites of cases, some failed, some skipped."""

from pathlib import Path
from xml.etree import ElementTree

from mesh.errors import UsageWrong
from mesh.service.printable import printable


class JunitReport:
    """Suites by name, each with its cases in the order in which they came."""

    def __init__(self) -> None:
        self._suites: dict[str, ElementTree.Element] = {}
        self._root = ElementTree.Element("testsuites")

    def passed(self, suite: str, name: str) -> None:
        self._case(suite, name)

    def failed(self, suite: str, name: str, *, kind: str, message: str, text: str = "") -> None:
        attributes = {"message": printable(message), "type": kind}
        failure = ElementTree.SubElement(self._case(suite, name), "failure", attributes)
        failure.text = printable(text, lines=True)

    def skipped(self, suite: str, name: str, *, why: str) -> None:
        ElementTree.SubElement(self._case(suite, name), "skipped", message=printable(why))

    def write(self, path: Path) -> None:
        """Write it to a file. Raises UsageWrong."""
        for suite in self._suites.values():
            suite.set("tests", str(len(suite)))
            suite.set("failures", str(len(suite.findall("testcase/failure"))))
            suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
        try:
            ElementTree.ElementTree(self._root).write(path, encoding="utf-8", xml_declaration=True)
        except OSError as wrong:
            raise UsageWrong(f"{path}: {wrong.strerror}") from wrong

    def _case(self, suite: str, name: str) -> ElementTree.Element:
        if suite not in self._suites:
            self._suites[suite] = ElementTree.SubElement(self._root, "testsuite", name=suite)
        return ElementTree.SubElement(self._suites[suite], "testcase", classname=suite, name=name)
