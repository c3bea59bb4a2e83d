// Restores the image in front with Clearshot: saves it as a TIFF, runs the program, opens the result with the same calibration.
//
// Put this file into Fiji.app/macros (or plugins, as Clearshot_Restore.ijm) and run it by Plugins > Macros > Run..., with an image open. The
// program `clearshot` must be there: `pip install clearshot`, or a binary. In a batch, give the settings as argument:
//   runMacro("Clearshot_Restore.ijm", "program=/usr/local/bin/clearshot std=1 options=--gain,0.46,--offset,100")

program = call("ij.Prefs.get", "clearshot.program", "clearshot");
std = false;
options = "";
given = getArgument();
if (given != "") {
    parts = split(given, " ");
    for (i = 0; i < parts.length; i++) {
        at = indexOf(parts[i], "=");
        key = substring(parts[i], 0, at);
        value = substring(parts[i], at + 1);
        if (key == "program") program = value;
        if (key == "std") std = parseInt(value);
        if (key == "options") options = value;
    }
} else {
    Dialog.create("Clearshot");
    Dialog.addString("Program", program, 40);
    Dialog.addCheckbox("Uncertainty too (standard deviation of every pixel)", std);
    Dialog.addString("Options, by commas", options, 40);
    Dialog.addMessage("For example: --gain,0.46,--offset,100,--read-noise,1.6\nWithout them the camera is estimated from the image.");
    Dialog.show();
    program = Dialog.getString();
    std = Dialog.getCheckbox();
    options = Dialog.getString();
    call("ij.Prefs.set", "clearshot.program", program);
}

if (nImages == 0) exit("Clearshot: open an image first.");
title = getTitle();
original = getImageID();
getVoxelSize(width, height, depth, unit);
folder = getDirectory("temp") + "clearshot-" + d2s(getTime(), 0) + File.separator;
File.makeDirectory(folder);
input = folder + "in.tif";
output = folder + "out.tif";
run("Duplicate...", "title=clearshot-in duplicate");
saveAs("Tiff", input);
close();

command = newArray(program, "restore", input, "-o", output, "--float", "--quiet");
if (std) command = Array.concat(command, "--std");
more = split(options, ",");
if (options != "") command = Array.concat(command, more);
// `exec` of older versions takes no array.
line = "";
quoted = "";
for (i = 0; i < command.length; i++) {
    line = line + command[i] + " ";
    quoted = quoted + ", \"" + replace(command[i], "\\\\", "\\\\\\\\") + "\"";
}
showStatus("Clearshot is restoring " + title + " ...");
said = eval("return exec(" + substring(quoted, 2) + ");");
if (!File.exists(output)) exit("Clearshot could not restore " + title + ".\n \n" + said + "\n \nIn a terminal this says more:\n" + line);

show(output, "restored");
if (std) show(folder + "out_std.tif", "std");
made = getFileList(folder);
for (i = 0; i < made.length; i++) ok = File.delete(folder + made[i]);
ok = File.delete(folder);

function show(path, suffix) {
    open(path);
    rename(replace(title, "\\.[A-Za-z.]+$", "") + " " + suffix);
    setVoxelSize(width, height, depth, unit);
    resetMinAndMax();
}
