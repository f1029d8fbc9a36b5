# What the user types and sees: options, flags, console. Nothing here knows of MPI, models or devices.
set(RANKTUNE_CLI_SOURCES options.cpp flags.cpp flags_apply.cpp flags_table.cpp flags_text.cpp
  console.cpp console_format.cpp)
ranktune_add_room(cli SOURCES ${RANKTUNE_CLI_SOURCES} DEPENDS ranktune_base Boost::program_options)
